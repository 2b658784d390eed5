"""One torch thread in every test process: two are slower on a busy machine, and equal bits need
one.

Comparisons end without their page, which takes seconds, unless a test asks for it. The secret that
marks the user's own runs is the session's own.

Three markers are given here, by the beginning of a test's name: `quick` to what says most (`make
quick`), `slow` to what takes seconds, which `make quick` leaves out, and `long` to what `make test`
leaves to `make test-long`. `pytest --durations=50` finds slow tests; a test may carry a marker of
its own as well.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from functools import cache

import pytest
import torch
import typer.main

torch.set_num_threads(1)
os.environ["COMITY_REPORT"] = "0"
USER = tempfile.TemporaryDirectory(prefix="comity-user-")
os.environ["XDG_STATE_HOME"] = USER.name

QUICK = (
    "cli/test_contracts.py",
    "cli/test_version.py",
    "core/",
    "docs/test_citation.py",
    "docs/test_doctests.py",
    "docs/test_links.py",
    "engines/test_lint.py",
    # one method through each engine
    "engines/test_parity.py::test_process_equals_loop[fedavg+dbe]",
    "engines/test_stacked.py::test_32_bits_stay_close[fedavg]",
    "equations/",
    "golden/",
)
SLOW = (
    "cli/test_contracts.py::test_a_file",
    "cli/test_contracts.py::test_compare",
    "cli/test_contracts.py::test_engines_give_the_same_bytes",
    "cli/test_contracts.py::test_newcomers_and_cautions_are_on_the_screen",
    "cli/test_contracts.py::test_parties_do_things_their_own_way",
    "cli/test_contracts.py::test_the_saved_config",
    "cli/test_contracts.py::test_tune_chooses_on_validation_data",
    "core/test_auc.py::test_more_classes_are_scikit_learns",
    "core/test_auc.py::test_two_classes_are_scikit_learns",
    "core/test_codec.py::test_memory_files_are_used_again",
    "equations/test_adcol.py::test_theorem_best_discriminator",
    "equations/test_adcol_variants.py",
    "equations/test_dbe_variants.py::test_table7_offset_element_counts",
    "equations/test_fed_sps.py::test_process_equals_loop",
    "equations/test_fed_sps.py::test_resumed",
    "equations/test_fed_sps.py::test_spec2_eq7_wasserstein",
    "equations/test_fed_sps.py::test_spec7_order_of_calls",
    "equations/test_fed_sps.py::test_spec8",
    "equations/test_fed_sps.py::test_stacked_equals_loop",
    "equations/test_fed_sps.py::test_vectors_and_images_run",
    "equations/test_fedufo.py::test_all_extras_off_is_fedavg",
    "equations/test_fedufo.py::test_bytes_of_a_round",
    "equations/test_fedufo.py::test_dynamic_sampling",
    "equations/test_fedufo.py::test_eq12_rounds_written_out",
    "equations/test_fedufo.py::test_feduad_is_fedufo_without_consensus",
    "equations/test_fedufo.py::test_no_option_is_without_effect",
    "equations/test_fedufo.py::test_process_equals_loop",
    "equations/test_fedufo.py::test_resumed",
    "equations/test_fedufo.py::test_section332",
    "equations/test_fedufo.py::test_stage_one_is_a_share",
    "equations/test_hosts.py",
    "equations/test_reductions.py::test_reduces_to_its_parent",
    "equations/test_relay.py::test_alg1_without_the_two_losses_is_solo",
    "equations/test_relay.py::test_every_place_and_every_interruption",
    "equations/test_relay.py::test_offline",
    "equations/test_relay.py::test_p2p",
    "equations/test_relay.py::test_t3",
)

LONG = (  # what others show in part; `make test-long` runs these, and CI does. Of a sweep over methods (`text`), FEW stay
    "cli/test_kill.py::test_killed_at_each_touch",
    "data/test_augment.py::test_engines_see_the_same_pictures",
    # where there are some; test_the_original_files has all formats
    "data/test_sets.py::test_the_real_files",
    # test_not_finite.py has all go back, too
    "engines/test_absent.py::test_a_lost_reply_is_as_if_the_party_had_been_away",
    "engines/test_bytes.py::test_kept_names_never_cross",
    "engines/test_bytes.py::test_ledger_equals_the_closed_form_in_other_settings",
    "engines/test_bytes.py::test_ledger_equals_the_closed_form_under_a_methods_own_settings",
    # test_without.py
    "engines/test_bytes.py::test_ledger_equals_the_closed_form_when_half_take_part_and_keep_batchnorm",
    "engines/test_bytes.py::test_rows_are_well_formed",
    "engines/test_elsewhere.py::test_all_methods_with_a_server_that_has_no_data",
    "engines/test_far_device.py::test_methods_keep_to_one_device",
    "engines/test_far_device.py::test_so_do_their_options",
    "engines/test_gated.py::test_all_that_methods_send_passes",
    "engines/test_gated.py::test_so_does_what_their_options_send",
    "engines/test_init.py::test_every_method_everywhere",
    "engines/test_newcomers.py::test_joining_is_the_same_on_processes",
    "engines/test_newcomers.py::test_newcomers_are_judged_by_the_model_they_end_with",
    "engines/test_newcomers.py::test_newcomers_are_not_asked_before_they_join",
    "engines/test_newcomers.py::test_rounds_are_those_of_a_federation_without_them",
    # test_stacked.py compares all methods, in 64 bits
    "engines/test_parity.py::test_process_equals_loop[",
    "engines/test_parity.py::test_process_equals_loop_under_a_methods_variants",
    "engines/test_parity.py::test_process_equals_loop_when_half_take_part",
    "engines/test_parity.py::test_process_equals_loop_with_any_number_of_workers",
    "engines/test_partial_sums.py::test_every_method_that_only_averages",
    "engines/test_pilot.py::test_from_round_1_on_it_is_the_run_with_that_number",
    "engines/test_resume.py::test_rows_behind_the_checkpoint_are_cut",
    "engines/test_resume.py::test_stopped_in_the_middle_of_a_round",
    "engines/test_resume.py::test_stopped_under_a_methods_variants",
    "engines/test_resume.py::test_stopped_with_half_the_parties_a_round",
    "engines/test_seam.py::test_every_method_is_the_same_everywhere",
    "engines/test_sites_restarts.py::test_a_server_that_is_killed_between_any_two_exchanges",
    # options, here and below: the methods themselves are in engines/
    "equations/test_fed_sps.py::test_process_equals_loop",
    "equations/test_fed_sps.py::test_resumed",
    "equations/test_fedufo.py::test_process_equals_loop",
    "equations/test_fedufo.py::test_resumed",
    "equations/test_relay.py::test_every_place_and_every_interruption",
)
FEW = ("fedavg", "scaffold+dbe", "adcol", "fedufo", "fed-sps(attack_steps=2)", "relay", "relay-p2p")
"""The five papers' methods, and among them: weights, states, two calls a round, a model at the
server, parcels between peers.
"""


@pytest.fixture(autouse=True, scope="session")
def _without_waiting_for_the_disk() -> Iterator[None]:
    """What is written is there for every other process at once; only a power cut, which nobody
    makes here, would tell.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_command_line() -> Iterator[None]:
    """Typer makes the whole command line anew for every command; here thousands follow each other
    in one process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are exported without their ONNX files, which take most of the time."""
    monkeypatch.setattr("comity.studies.export.find_spec", lambda name: None)


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A command ignores Ctrl-C once it is done, because its process is; here others follow."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if name.startswith(QUICK):
            item.add_marker(pytest.mark.quick)
        if name.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if name.startswith(LONG) and not is_one_of_few(item):
            item.add_marker(pytest.mark.long)


def is_one_of_few(item: pytest.Item) -> bool:
    """Whether this is a method that stays in `make test` when the sweep over all of them is long."""
    return (
        isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and item.callspec.params.get("text") in FEW
    )
