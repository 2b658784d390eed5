"""The mutants that `mutants.py` tries: important lines, changed so that a guarantee no longer holds.

`old` must occur exactly once in its file; `tests/test_mutants.py` checks it. Whoever changes one of
these lines changes the list as well.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One changed text in one file of src/."""

    breaks: str
    """What no longer holds, in words. It is the mutant's name."""
    file: str
    """The file, as a path in src/."""
    old: str
    new: str
    tests: str
    """Arguments of pytest: the tests of which one must fail."""


ACCOUNT = "tests/privacy/test_account_faults.py"
PRIVACY = "tests/privacy/test_privacy.py"
MEANS = "tests/privacy/test_noisy_class_means.py"
HOSTS = "tests/privacy/test_private_hosts.py"
SECURE = "tests/privacy/test_secure_aggregation.py"
SECURE_ATTACKS = "tests/adversary/test_secure_aggregation_attacks.py"
BUDGET = "tests/adversary/test_budget_attacks.py"
NOISE = "tests/adversary/test_noise_attacks.py"
SERVER_NOISE = "tests/adversary/test_server_noise_attacks.py"
REQUESTS = "tests/adversary/test_requests_attacks.py"
POWER = "tests/adversary/test_power_failure.py"
SHARES = "tests/deploy/test_party_noise_in_sums.py"
GROUPS = "tests/adversary/test_group_size_attacks.py"
EVALUATION = "tests/adversary/test_evaluation_attacks.py"
FILES = "tests/adversary/test_files.py"
POLICY = "tests/deploy/test_policy.py"
LEAVING = "tests/deploy/test_runs_under_default_policy.py"
RESTARTS = "tests/deploy/test_sites_restarts.py"
EXCHANGE = "tests/deploy/test_key_exchange.py"
VALIDATE = "tests/core/test_validate.py"
SEALED = "tests/wire/test_sealed_messages.py"
DAMAGE = "tests/runs/test_damage.py"
TRUST = "tests/cli/test_trust.py"
GAIN = "tests/measure/test_gain.py"

NOISE_AND_CLIPPING = [
    Mutant(
        "DP-SGD adds half of the noise",
        "comity/training/dp_sgd.py",
        "spread = private.noise * private.clip / self._expected",
        "spread = private.noise * private.clip / (2 * self._expected)",
        f"{PRIVACY}::test_dp_sgd_noise_has_the_scale_of_the_clip",
    ),
    Mutant(
        "DP-SGD does not clip the gradients of records",
        "comity/training/dp_sgd.py",
        "share = scale * clip / norms.clamp(min=clip)",
        "share = scale * torch.ones_like(norms)",
        f"{ACCOUNT}::test_sensitivity_of_a_step_is_bounded",
    ),
    Mutant(
        "the norm of a record's gradient leaves out the bias",
        "comity/training/dp_sgd.py",
        "outputs * inputs if bias is None else torch.addcmul(outputs, outputs, inputs)",
        "outputs * inputs",
        f"{ACCOUNT}::test_clipped_gradients_equal_a_loop_over_records",
    ),
    Mutant(
        "a record whose gradient overflows ruins the sum of the others",
        "comity/training/dp_sgd.py",
        "overflowing = ~norms.isfinite()",
        "overflowing = torch.zeros_like(norms, dtype=torch.bool)",
        "tests/adversary/test_values.py::test_a_record_that_overflows_adds_nothing",
    ),
    Mutant(
        "a record is sampled twice as often as declared",
        "comity/training/dp_sgd.py",
        "units]) < rate\n",
        "units]) < 2 * rate\n",
        f"{ACCOUNT}::test_2_batches_are_poisson_samples",
    ),
    Mutant(
        "a loss that couples the records of a batch is trained privately",
        "comity/training/dp_sgd.py",
        "SEPARABLE_TOLERANCE = 1e-3",
        "SEPARABLE_TOLERANCE = 1e9",
        f"{HOSTS}::test_a_loss_that_couples_records_is_refused",
    ),
    Mutant(
        "a party's change of the model is not clipped (+dp, level=party)",
        "comity/algorithms/dp.py",
        "value * (most / size.clamp(min=most))",
        "value * (size / size)",
        f"{HOSTS}::test_party_level_clips_updates_and_adds_noise_to_the_mean",
    ),
    Mutant(
        "a mean of fewer parties has the noise of all (+dp, level=party)",
        "comity/algorithms/dp.py",
        "less = len(cohort) / count",
        "less = 1.0",
        f"{HOSTS}::test_a_mean_of_fewer_models_has_more_noise",
    ),
    Mutant(
        "class means have noise without the sensitivity (+ldp)",
        "comity/components/hidden_means.py",
        "release(how.level, how.clip, how.noise, classes).noise",
        "how.noise",
        f"{MEANS}::test_noise_has_the_declared_scale",
    ),
    Mutant(
        "rows are not clipped before they are averaged (+ldp)",
        "comity/components/hidden_means.py",
        "return z * (most / size.clamp(min=most))",
        "return z",
        f"{MEANS}::test_sensitivity_of_sums_and_counts_to_a_row",
    ),
    Mutant(
        "rows are not bounded before noise (lap_l1, gauss_l2)",
        "comity/privacy/mechanisms.py",
        "return z * (0.5 / norms.clamp(min=0.5))",
        "return z",
        f"{PRIVACY}::test_two_bounded_rows_differ_by_at_most_one",
    ),
    Mutant(
        "rows have half of the Laplace noise",
        "comity/privacy/mechanisms.py",
        "laplace(key, z.shape, 1 / epsilon)",
        "laplace(key, z.shape, 0.5 / epsilon)",
        f"{PRIVACY}::test_laplace_noise_has_the_scale_one_over_epsilon",
    ),
    Mutant(
        "rows have half of the Gaussian noise",
        "comity/privacy/mechanisms.py",
        "gaussian(key, z.shape, gaussian_sigma(epsilon, delta))",
        "gaussian(key, z.shape, gaussian_sigma(epsilon, delta) / 2)",
        f"{PRIVACY}::test_gaussian_noise_has_the_analytic_scale",
    ),
    Mutant(
        "the samples of a private training can be read",
        "comity/algorithms/dp.py",
        "return replace(party, data=hide_samples(party.data), private=how)",
        "return replace(party, private=how)",
        f"{HOSTS}::test_method_that_bypasses_dp_sgd_is_refused",
    ),
]

DECLARED_NOISE = [
    Mutant(
        "DP-SGD declares twice its noise",
        "comity/algorithms/dp.py",
        "self.method.sigma * self.method.clip,\n",
        "2 * self.method.sigma * self.method.clip,\n",
        f"{HOSTS}::test_the_noise_in_a_model_is_the_noise_that_is_charged",
    ),
    Mutant(
        "DP-SGD declares half of its sampling rate",
        "comity/algorithms/dp.py",
        "rate=sampling.rate,",
        "rate=sampling.rate / 2,",
        f"{HOSTS}::test_noise_is_solved_from_a_budget",
    ),
    Mutant(
        "DP-SGD declares one step instead of all",
        "comity/algorithms/dp.py",
        "steps=sampling.steps,",
        "steps=1,",
        f"{HOSTS}::test_noise_is_solved_from_a_budget",
    ),
    Mutant(
        "more trainings than declared are not noticed (+dp)",
        "comity/algorithms/dp.py",
        "if sorted(trainings) != declared:",
        "if not sorted(trainings):",
        f"{HOSTS}::test_method_that_bypasses_dp_sgd_is_refused",
    ),
    Mutant(
        "the mean of all parties' models declares half of its sensitivity",
        "comity/algorithms/dp.py",
        "            self.method.clip / len(cohort),\n",
        "            self.method.clip / (2 * len(cohort)),\n",
        f"{HOSTS}::test_one_party_moves_the_mean_by_no_more_than_is_declared",
    ),
    Mutant(
        "a replaced party declares the change of one party, not of two",
        "comity/algorithms/dp.py",
        "                2 * C,\n",
        "                C,\n",
        f"{HOSTS}::test_one_party_moves_the_mean_by_no_more_than_is_declared",
    ),
    Mutant(
        "class means declare the sensitivity of sums without counts (level=row)",
        "comity/components/hidden_means.py",
        "change = math.sqrt(2) * clip",
        "change = clip",
        f"{MEANS}::test_sensitivity_of_sums_and_counts_to_a_row",
    ),
    Mutant(
        "class means declare the sensitivity of one class (level=party)",
        "comity/components/hidden_means.py",
        "change = 2 * clip * math.sqrt(classes)",
        "change = 2 * clip",
        f"{MEANS}::test_sensitivity_is_tight_and_holds_for_values_that_are_not_finite",
    ),
    Mutant(
        "class means declare twice their noise (+ldp)",
        "comity/algorithms/ldp.py",
        "release(self.method.level, self.method.clip, self.method.sigma, facts",
        "release(self.method.level, self.method.clip, 2 * self.method.sigma, facts",
        f"{MEANS}::test_unit_of_protection_is_row_record_or_party",
    ),
    Mutant(
        "means that no method declares leave with noise of another class count (+ldp)",
        "comity/algorithms/ldp.py",
        "if reply is not None and class_counts != declared:",
        "if reply is not None and not class_counts:",
        f"{MEANS}::test_method_that_bypasses_the_noise_is_refused",
    ),
    Mutant(
        "rows declare twice their Laplace noise",
        "comity/privacy/options.py",
        'Release("row", "laplace", sensitivity, 1 / self.epsilon, "replaced")',
        'Release("row", "laplace", sensitivity, 2 / self.epsilon, "replaced")',
        f"{PRIVACY}::test_b12_epsilon_of_a_row_adds_up_over_rounds",
    ),
    Mutant(
        "rows declare twice their Gaussian noise",
        "comity/privacy/options.py",
        'Release("row", "gaussian", 1.0, sigma, "replaced")',
        'Release("row", "gaussian", 1.0, 2 * sigma, "replaced")',
        f"{MEANS}::test_unit_of_protection_is_row_record_or_party",
    ),
    Mutant(
        "the paper's rows declare a sensitivity of 1",
        "comity/privacy/options.py",
        'sensitivity = float(width) if self.noise == "paper" else 1.0',
        "sensitivity = 1.0",
        f"{PRIVACY}::test_sensitivity_of_the_rows_of_the_paper_is_their_width",
    ),
    Mutant(
        "a discriminator that is trained at the server declares twice its noise",
        "comity/privacy/options.py",
        "noise = self.method.disc_noise * self.method.disc_clip\n",
        "noise = 2 * self.method.disc_noise * self.method.disc_clip\n",
        f"{PRIVACY}::test_b12_dp_sgd_on_the_discriminator_is_accounted_for",
    ),
    Mutant(
        "a field that nobody declares leaves without a note in the account",
        "comity/privacy/account.py",
        "if declared.get(name) is None:",
        'if name == "":',
        f"{ACCOUNT}::test_undeclared_field_of_a_reply_gives_no_guarantee",
    ),
    Mutant(
        "a party with values that left without noise has a finite epsilon",
        "comity/privacy/account.py",
        "math.inf if party in parties_without else epsilon(history[party], budget.delta)",
        "epsilon(history.get(party, {}), budget.delta)",
        f"{ACCOUNT}::test_4_weights_without_noise_beside_noisy_rows_give_no_guarantee",
    ),
]

COMPOSITION = [
    Mutant(
        "epsilon counts each kind of release once (distributions)",
        "comity/privacy/composition.py",
        "SelfComposedDpEvent(_event(release), release.steps * count)",
        "SelfComposedDpEvent(_event(release), release.steps)",
        f"{ACCOUNT}::test_renyi_accountant_is_an_upper_bound",
    ),
    Mutant(
        "epsilon counts one step of each training (distributions)",
        "comity/privacy/composition.py",
        "SelfComposedDpEvent(_event(release), release.steps * count)",
        "SelfComposedDpEvent(_event(release), count)",
        f"{ACCOUNT}::test_renyi_accountant_is_an_upper_bound",
    ),
    Mutant(
        "epsilon counts each kind of release once (Rényi)",
        "comity/privacy/composition.py",
        "count * release.steps * _divergences",
        "release.steps * _divergences",
        f"{ACCOUNT}::test_renyi_accountant_is_an_upper_bound",
    ),
    Mutant(
        "epsilon is for a larger delta than it says (Rényi)",
        "comity/privacy/composition.py",
        "math.log(delta * order) / (order - 1)",
        "math.log(order) / (order - 1)",
        f"{ACCOUNT}::test_renyi_accountant_is_an_upper_bound",
    ),
    Mutant(
        "releases for different neighbours are added up",
        "comity/privacy/composition.py",
        "    if any(release.drawn_of for release in history):\n        return None\n",
        "",
        f"{ACCOUNT}::test_9_different_neighbour_relations_are_not_composed",
    ),
    Mutant(
        "a guarantee is said to be for the strongest unit",
        "comity/privacy/composition.py",
        "return min((release.unit for release in history), key=order.index",
        "return max((release.unit for release in history), key=order.index",
        f"{ACCOUNT}::test_weakest_unit",
    ),
    Mutant(
        "two equal releases of one call are charged once",
        "comity/privacy/account.py",
        "by_identity.setdefault(id(release), (release, []))",
        "by_identity.setdefault(hash(release), (release, []))",
        f"{HOSTS}::test_every_method_runs_with_a_bound_or_is_refused[ditto]",
    ),
    Mutant(
        "a call beyond the budget of a run is made",
        "comity/privacy/account.py",
        "            return True\n        return epsilon(history, delta) <= most\n",
        "            return True\n        return True\n",
        f"{HOSTS}::test_run_and_resumed_run_stop_before_they_exceed_the_budget",
    ),
]

KEYS = [
    Mutant(
        "the noise of a site depends on no input",
        "comity/base/key.py",
        "if not self.binds:",
        "if self.bits >= 0:",
        f"{NOISE}::test_two_messages_for_one_call_have_different_noise",
    ),
    Mutant(
        "two requests for one call have the same noise",
        "comity/engines/site.py",
        ").bind(inputs)",
        ")",
        f"{NOISE}::test_two_messages_for_one_call_have_different_noise",
    ),
    Mutant(
        "the noise of a site can be computed from the seed",
        "comity/base/key.py",
        'key=self.secret, person=b"noise"',
        'key=b"", person=b"noise"',
        "tests/deploy/test_site_noise.py::test_noise_at_sites_differs_from_a_simulation",
    ),
    Mutant(
        "two runs at a site have the same noise",
        "comity/deploy/site_store.py",
        "blake2b(secret_of(folder) + run.encode()",
        "blake2b(secret_of(folder)",
        "tests/deploy/test_site_noise.py::test_runs_with_different_names_have_different_noise",
    ),
    Mutant(
        "two means of different parties have the same noise",
        "comity/core/aggregate.py",
        "key = self._key.bind(tree_digest(mean))",
        "key = self._key",
        f"{SERVER_NOISE}::test_the_same_replies_have_the_same_noise_and_others_do_not",
    ),
    Mutant(
        "two discriminators of different rows have the same noise",
        "comity/privacy/options.py",
        "key = key.bind(tree_digest([theta, data.x, data.y]))",
        "key = key.fold()",
        f"{SERVER_NOISE}::test_discriminators_of_other_rows_have_other_noise",
    ),
]

RELEASES = [
    Mutant(
        "a release is charged after the reply is computed",
        "comity/deploy/site_calls.py",
        """\
        self._charge(call, request, policy)
        with self._undone_if_it_fails():
            return self._compute_reply(head, content, inbox, request, policy)
""",
        """\
        with self._undone_if_it_fails():
            reply = self._compute_reply(head, content, inbox, request, policy)
            self._charge(call, request, policy)
            return reply
""",
        f"{BUDGET}::test_a_charge_is_on_the_disk_before_the_reply_is_computed",
    ),
    Mutant(
        "the ledger allows a release beyond the budget",
        "comity/deploy/release_ledger.py",
        "if total > most:",
        "if total > math.inf:",
        f"{BUDGET}::test_answers_to_new_messages_end_with_the_budget",
    ),
    Mutant(
        "the ledger checks the budget without earlier releases",
        "comity/deploy/release_ledger.py",
        "history = self._history + Counter(release for release in releases if release)",
        "history = Counter(release for release in releases if release)",
        f"{BUDGET}::test_runs_that_begin_together_share_one_budget",
    ),
    Mutant(
        "a run begins although earlier runs have spent the budget",
        "comity/deploy/site_run.py",
        "total = self.ledger.history(but=self.name) + (plan | in_run)",
        "total = plan | in_run",
        "tests/deploy/test_server_without_data.py::test_epsilon_budget_of_a_site_covers_all_runs",
    ),
    Mutant(
        "values that left without noise are forgotten by the budget",
        "comity/deploy/site_run.py",
        "bounded = self.ledger.is_bounded(but=self.name) and not own_constants",
        "bounded = not own_constants",
        f"{BUDGET}::test_no_run_begins_under_a_budget_after_values_without_noise",
    ),
    Mutant(
        "the ledger allows releases after values that left without noise",
        "comity/deploy/release_ledger.py",
        "is_bounded = all(releases) and not self._has_unprotected",
        "is_bounded = True",
        f"{BUDGET}::test_no_run_continues_under_a_budget_after_values_without_noise",
    ),
    Mutant(
        "a charge in the ledger may be lost by a power failure",
        "comity/deploy/site_ledger.py",
        "            os.fsync(file.fileno())\n        self._count(rows)\n",
        "        self._count(rows)\n",
        f"{BUDGET}::test_the_ledger_is_synced_before_the_reply",
    ),
    Mutant(
        "two processes write to the ledger at once",
        "comity/deploy/site_ledger.py",
        "            lock_file(file)\n            if file.seek",
        "            if file.seek",
        f"{BUDGET}::test_the_ledger_is_locked_while_it_is_written",
    ),
    Mutant(
        "a changed row of the ledger is not noticed",
        "comity/deploy/site_ledger.py",
        "if not hmac.compare_digest(code, right):",
        "if not right:",
        f"{BUDGET}::test_a_damaged_ledger_is_refused",
    ),
    Mutant(
        "a removed row of the ledger is not noticed",
        "comity/deploy/site_ledger.py",
        'text = f"{before}\\n{cells}".encode()',
        "text = cells.encode()",
        f"{BUDGET}::test_a_damaged_ledger_is_refused",
    ),
]

SITES = [
    Mutant(
        "the noise of a reply does not depend on the site's state",
        "comity/deploy/site_calls.py",
        "(repr((head.call, head.first)).encode(), state, body, *sealed)",
        "(repr((head.call, head.first)).encode(), body, *sealed)",
        f"{NOISE}::test_another_state_makes_another_noise",
    ),
    Mutant(
        "the noise of a reply does not depend on the message",
        "comity/deploy/site_calls.py",
        "(repr((head.call, head.first)).encode(), state, body, *sealed)",
        "(repr((head.call, head.first)).encode(), state, *sealed)",
        f"{NOISE}::test_two_messages_for_one_call_have_different_noise",
    ),
    Mutant(
        "the noise of a reply does not depend on the sealed messages",
        "comity/deploy/site_calls.py",
        "(repr((head.call, head.first)).encode(), state, body, *sealed)",
        "(repr((head.call, head.first)).encode(), state, body)",
        f"{NOISE}::test_other_sealed_messages_make_another_request",
    ),
    Mutant(
        "a stored reply is sent for another request",
        "comity/deploy/site_store.py",
        "return reply if head == request + _digest(reply) else None",
        "return reply if head.endswith(_digest(reply)) else None",
        f"{NOISE}::test_a_second_message_for_one_call_is_charged",
    ),
    Mutant(
        "a damaged stored reply is sent",
        "comity/deploy/site_store.py",
        "return reply if head == request + _digest(reply) else None",
        "return reply if head.startswith(request) else None",
        f"{NOISE}::test_a_damaged_stored_reply_is_computed_again",
    ),
    Mutant(
        "a private method is called outside its plan",
        "comity/deploy/site_calls.py",
        "if call.occurrence or not (joins or any(in_plan[stage] for stage in stages)):",
        "if not self._run.name:",
        f"{BUDGET}::test_calls_outside_the_plan_are_refused",
    ),
    Mutant(
        "a site computes after the end of the run",
        "comity/deploy/handler.py",
        "run.check_not_ended()",
        "run.describe()",
        f"{NOISE}::test_nothing_is_answered_after_the_end",
    ),
    Mutant(
        "a request with a wrong tag is answered",
        "comity/deploy/session.py",
        "if not hmac.compare_digest(_tag(self._key, number, content), tag):",
        "if not tag:",
        f"{REQUESTS}::test_a_request_that_was_changed_on_the_way_is_refused",
    ),
    Mutant(
        "a request is answered twice",
        "comity/deploy/session.py",
        "if count <= self._number:",
        "if count < 0:",
        f"{REQUESTS}::test_a_replayed_request_is_refused",
    ),
    Mutant(
        "the opening of a run is answered twice",
        "comity/deploy/session.py",
        "if request in self._openings:",
        "if not request:",
        f"{REQUESTS}::test_a_replayed_request_is_refused",
    ),
    Mutant(
        "an opening has other settings than the signed ones",
        "comity/deploy/session.py",
        """\
        if not self._identity.is_signed(
            opening.signed_key.certificate, opening.signature, _opening_text(run, content)
        ):
""",
        "        if not opening.signature:\n",
        f"{REQUESTS}::test_a_signed_opening_cannot_carry_other_settings",
    ),
    Mutant(
        "any member of the federation opens a run as its server",
        "comity/deploy/session.py",
        "self._identity.public_key(run, self._server, opening.signed_key)",
        "self._identity.public_key(run, opening.signed_key.name, opening.signed_key)",
        f"{REQUESTS}::test_only_the_certificate_of_the_server_opens_a_run",
    ),
    Mutant(
        "a server runs other settings than the submitter has signed",
        "comity/deploy/site_setup.py",
        "        or (signed is not None and signed != experiment)\n",
        "",
        f"{REQUESTS}::test_settings_other_than_the_signed_ones_are_refused",
    ),
    Mutant(
        "a certificate of another root is accepted",
        "comity/deploy/key_exchange.py",
        "            certificate.verify_directly_issued_by(self.root)\n",
        "",
        f"{EXCHANGE}::test_invalid_signed_keys_are_refused",
    ),
    Mutant(
        "an expired certificate is accepted",
        "comity/deploy/key_exchange.py",
        "<= now <= certificate.not_valid_after_utc:",
        "<= now:",
        f"{EXCHANGE}::test_certificates_outside_their_validity_are_refused",
    ),
    Mutant(
        "a key that was signed for another run is accepted",
        "comity/deploy/key_exchange.py",
        'return f"comity passport {run} {name} {public}".encode()',
        'return f"comity passport {name} {public}".encode()',
        f"{EXCHANGE}::test_invalid_signed_keys_are_refused",
    ),
]

POLICIES = [
    Mutant(
        "a training on few records passes the minimum group size",
        "comity/deploy/group_size.py",
        '"training": data.train.group_size(trained)',
        '"training": data.train.whole_group',
        f"{GROUPS}::test_values_of_few_records_do_not_leave",
    ),
    Mutant(
        "statistics of a small class pass the minimum group size",
        "comity/deploy/group_size.py",
        '"by class": min(records.whole_group for records in by_class)',
        '"by class": data.train.whole_group',
        f"{GROUPS}::test_statistics_of_a_small_class_do_not_leave",
    ),
    Mutant(
        "figures of few validation records pass the minimum group size",
        "comity/deploy/group_size.py",
        '"validation": data.validation',
        '"validation": data.train.whole_group',
        f"{GROUPS}::test_figures_of_few_validation_records_do_not_leave",
    ),
    Mutant(
        "values of single records pass the minimum group size",
        "comity/deploy/group_size.py",
        '"single": 1',
        '"single": data.train.whole_group',
        f"{GROUPS}::test_values_of_few_records_do_not_leave",
    ),
    Mutant(
        "records of one patient count as records of several",
        "comity/deploy/group_size.py",
        "        if not self.by_patient or not records:\n",
        "        if records:\n",
        f"{GROUPS}::test_many_records_of_few_patients_do_not_leave",
    ),
    Mutant(
        "test records of few patients count as many",
        "comity/base/samples.py",
        "if self.patient_count is None or self.held_out_patients is None:",
        "if True:",
        f"{GROUPS}::test_figures_of_few_test_patients_do_not_leave",
    ),
    Mutant(
        "a field without noise beside one with noise passes the minimum group size",
        "comity/deploy/group_size.py",
        "all(release.noise > 0 for release in releases)",
        "any(release.noise >= 0 for release in releases)",
        f"{GROUPS}::test_values_of_few_records_do_not_leave",
    ),
    Mutant(
        "a field that no method describes passes the minimum group size",
        "comity/deploy/policy.py",
        "            if group.size is None:\n",
        "            if group.size is None:\n                continue\n            if not group.field:\n",
        f"{GROUPS}::test_a_field_without_a_description_does_not_leave",
    ),
    Mutant(
        "a later run chooses another split of the records",
        "comity/deploy/data.py",
        "split = SiteSplit(*stored) if stored else requested",
        "split = requested",
        f"{EVALUATION}::test_the_first_run_decides_on_the_split",
    ),
    Mutant(
        "nearly all records are held out",
        "comity/deploy/policy.py",
        "if share > self.held_out:",
        "if share > 1:",
        f"{EVALUATION}::test_nearly_all_records_cannot_be_held_out",
    ),
    Mutant(
        "a site evaluates without limit",
        "comity/deploy/sent_ledger.py",
        "if evaluations >= policy.evaluations:",
        "if evaluations < 0:",
        f"{EVALUATION}::test_evaluations_are_limited",
    ),
    Mutant(
        "losses leave with all digits",
        "comity/deploy/policy.py",
        'return float(f"{value:.{max(1, self.digits)}g}")',
        "return value",
        f"{EVALUATION}::test_losses_leave_with_few_digits",
    ),
    Mutant(
        "figures of few samples leave",
        "comity/deploy/site_evaluation.py",
        "return min(score.count, self._run.data.group_size(split)) >= policy.records",
        "return score.count >= 0",
        f"{LEAVING}::test_metrics_of_few_samples_are_withheld",
    ),
    Mutant(
        "outcomes of test samples leave without permission",
        "comity/deploy/site_evaluation.py",
        "evaluation.answers if policy.outcomes and enough_tests else None",
        "evaluation.answers if enough_tests else None",
        f"{LEAVING}::test_labels_outcomes_and_class_counts_stay_at_the_sites",
    ),
    Mutant(
        "more bytes leave than the policy allows",
        "comity/deploy/sent_ledger.py",
        "if in_run + more > policy.bytes:",
        "if in_run + more < 0:",
        f"{LEAVING}::test_limits_of_bytes_per_run_and_in_total",
    ),
    Mutant(
        "deleting a run gives bytes back",
        "comity/deploy/site_run.py",
        "self.sent_ledger = SentLedger(self.at, self.party)",
        "self.sent_ledger = SentLedger(self.folder.path, self.party)",
        f"{BUDGET}::test_deleting_the_folder_of_a_run_gives_no_bytes_back",
    ),
    Mutant(
        "bytes leave before they are charged",
        "comity/deploy/site_calls.py",
        """        self._run.charge_sent(call.round, call.function, charges, policy)
        self._record_result(call, request, result)
""",
        """        self._record_result(call, request, result)
        self._run.charge_sent(call.round, call.function, charges, policy)
""",
        f"{BUDGET}::test_bytes_are_charged_before_the_reply_leaves",
    ),
    Mutant(
        "sites without a certificate are counted",
        "comity/deploy/site_run.py",
        "return len({self.party, *head.signed_keys} & set(names))",
        "return len(names)",
        f"{GROUPS}::test_sites_without_certificates_do_not_count",
    ),
    Mutant(
        "a kind of value leaves that the policy does not name",
        "comity/deploy/policy.py",
        "sorted(layer.traits.leaves - set(self.kinds))",
        "sorted(layer.traits.leaves - set(LEAVES))",
        f"{POLICY}::test_each_rule_refuses_and_is_named",
    ),
    Mutant(
        "a file that a run names is executed at a site",
        "comity/deploy/policy.py",
        'if any(is_code(parse(part).name) for part in split(text, "+") if part):',
        "if not text:",
        f"{POLICY}::test_files_in_settings_are_refused_before_they_run",
    ),
    Mutant(
        "a method without a bound runs under a privacy budget",
        "comity/deploy/secure_terms.py",
        "layer.traits.protects_records for layer in chain(algorithm)",
        "layer.traits for layer in chain(algorithm)",
        f"{POLICY}::test_each_rule_refuses_and_is_named",
    ),
]

MESSAGES = [
    Mutant(
        "a message has weights of another shape",
        "comity/core/validate.py",
        "if (tuple(value.shape), value.dtype) != (like.shapes[name][0], like.dtypes[name]):",
        "if value.dtype != like.dtypes[name]:",
        f"{VALIDATE}::test_invalid_messages_are_refused",
    ),
    Mutant(
        "a message has values that are not finite",
        "comity/core/validate.py",
        '        _check_finite(f"The message for {call.function}", content)\n',
        "",
        f"{VALIDATE}::test_invalid_messages_are_refused",
    ),
    Mutant(
        "a message is larger than allowed",
        "comity/core/validate.py",
        "if payload(tree) > self.most_bytes:",
        "if payload(tree) < 0:",
        f"{VALIDATE}::test_too_large_messages_are_refused",
    ),
    Mutant(
        "a message is of another type than declared",
        "comity/core/validate.py",
        "if not fits(tree, declared_type):",
        "if not what:",
        f"{VALIDATE}::test_invalid_messages_are_refused",
    ),
    Mutant(
        "a reply of another shape is averaged by broadcasting",
        "comity/core/aggregate.py",
        "if value.shape != other.shape or value.dtype != other.dtype:",
        "if value.dtype != other.dtype:",
        "tests/core/test_averaged_shapes.py",
    ),
    Mutant(
        "a sealed message is opened by another party in the same process",
        "comity/base/record.py",
        "if recipient not in sealed.to:",
        "if not sealed.to:",
        f"{SEALED}::test_in_process_sealed_message_opens_only_for_recipients",
    ),
    Mutant(
        "a sealed message of another round is opened in the same process",
        "comity/base/record.py",
        "if sealed.origin != (sender, round):",
        "if sealed.origin is None:",
        f"{SEALED}::test_in_process_sealed_message_is_bound_to_sender_and_round",
    ),
    Mutant(
        "an encrypted key is not bound to sender and recipient",
        "comity/wire/sealing.py",
        'return self._run + f" {round} {sender} {recipient} {size}".encode()',
        'return self._run + f" {round} {size}".encode()',
        f"{SEALED}::test_a_carrier_cannot_return_it_to_its_sender",
    ),
    Mutant(
        "an encrypted key is not bound to its round",
        "comity/wire/sealing.py",
        'return self._run + f" {round} {sender} {recipient} {size}".encode()',
        'return self._run + f" {sender} {recipient} {size}".encode()',
        f"{SEALED}::test_server_cannot_change_sender_round_or_size",
    ),
    Mutant(
        "a sealed message is opened for a second call",
        "comity/wire/sealing.py",
        "if self._opening_calls.get((recipient, locked), call) != call:",
        "if not locked:",
        f"{SEALED}::test_sealed_message_opens_for_one_call_also_when_repeated",
    ),
]

FILES_AND_TRUST = [
    Mutant(
        "a damaged state of a checkpoint is read",
        "comity/engines/saved.py",
        "if not as_written or zlib.crc32(blob) != saved.crc:",
        "if not as_written:",
        f"{DAMAGE}::test_a_changed_state_is_not_continued_from",
    ),
    Mutant(
        "a site's state may be lost by a power failure",
        "comity/deploy/site_store.py",
        "        flush_to_disk(self._folder / saved.file)\n",
        "",
        f"{RESTARTS}::test_a_state_is_on_the_disk_before_the_index_names_it",
    ),
    Mutant(
        "the name of a site's state may be lost by a power failure",
        "comity/deploy/site_store.py",
        "        flush_to_disk(self._folder)  # the file's name\n",
        "",
        f"{RESTARTS}::test_a_state_is_on_the_disk_before_the_index_names_it",
    ),
    Mutant(
        "a site's ledger may be lost by a power failure",
        "comity/deploy/site_ledger.py",
        "        flush_to_disk(self._folder)  # the file's name\n",
        "",
        f"{POWER}::test_nothing_that_guarantees_depend_on_is_lost",
    ),
    Mutant(
        "a site's folder of a run may be lost by a power failure",
        "comity/safe_files.py",
        "        flush_to_disk(path.parent)\n",
        "",
        f"{POWER}::test_nothing_that_guarantees_depend_on_is_lost",
    ),
    Mutant(
        "stored replies may be lost by a power failure",
        "comity/safe_files.py",
        "            folder.mkdir(path.name)\n            folder.flush()\n",
        "            folder.mkdir(path.name)\n",
        f"{POWER}::test_nothing_that_guarantees_depend_on_is_lost",
    ),
    Mutant(
        "a state may be lost although the checkpoint names it",
        "comity/runs/checkpoint.py",
        "flush_to_disk(path)  # all are written by now, so the first flush may include the others",
        "pass",
        f"{DAMAGE}::test_files_are_synced_before_the_manifest_names_them",
    ),
    Mutant(
        "a replaced file may be lost by a power failure",
        "comity/safe_files.py",
        "                os.fsync(file.fileno())\n            folder.rename",
        "            folder.rename",
        f"{DAMAGE}::test_files_are_synced_before_the_manifest_names_them",
    ),
    Mutant(
        "a damaged JSON file is read",
        "comity/checksums.py",
        "if CRC in content and content[CRC] != _crc(plain):",
        "if CRC in content and content[CRC] is None:",
        f"{DAMAGE}::test_damaged_measures_are_detected",
    ),
    Mutant(
        "a damaged table is read",
        "comity/checksums.py",
        "if remaining or self.crc not in (None, crc):",
        "if remaining:",
        f"{DAMAGE}::test_changed_rows_are_detected_before_anything_is_truncated",
    ),
    Mutant(
        "a manifest without a checksum is read",
        "comity/runs/checkpoint.py",
        "read_json(path, needs_checksum=True)",
        "read_json(path)",
        f"{DAMAGE}::test_a_manifest_without_its_checksum",
    ),
    Mutant(
        "a folder with a forged mark runs its files",
        "comity/runs/trust.py",
        "is_custom = _is_among(_code(settings, digests), codes)",
        "is_custom = bool(_code(settings, digests) and codes)",
        f"{TRUST}::test_forged_mark_is_refused",
    ),
    Mutant(
        "everybody can compute the mark of a folder",
        "comity/runs/trust.py",
        'hmac.digest(_secret(), text, "sha256")',
        'hmac.digest(_secret()[:0], text, "sha256")',
        f"{TRUST}::test_run_of_another_user_needs_trust",
    ),
    Mutant(
        "a file that has changed since is executed without a question",
        "comity/runs/trust.py",
        "if texts := changes(folder, files):",
        "if texts := changes(folder, []):",
        f"{TRUST}::test_changed_code_is_refused_without_trust",
    ),
    Mutant(
        "a file is written through a link",
        "comity/safe_files.py",
        'NO_LINK = getattr(os, "O_NOFOLLOW", 0) | ',
        "NO_LINK = ",
        f"{FILES}::test_files_that_grow_follow_no_link[symbolic]",
    ),
    Mutant(
        "a file that already exists is written to",
        "comity/safe_files.py",
        "NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL",
        "NEW = os.O_WRONLY | os.O_CREAT",
        f"{FILES}::test_temporary_names_cannot_be_guessed",
    ),
    Mutant(
        "a file with a second name is written to",
        "comity/safe_files.py",
        "or status.st_nlink > 1:",
        "or status.st_nlink < 1:",
        f"{FILES}::test_files_that_grow_follow_no_link",
    ),
    Mutant(
        "a secret can be read by whoever can read its folder",
        "comity/safe_files.py",
        "mode = PRIVATE_FILE if private else PRIVATE_FILE | self._mode & 0o666",
        "mode = PRIVATE_FILE | self._mode & 0o666",
        f"{FILES}::test_nothing_is_more_open_than_its_folder",
    ),
    Mutant(
        "a file can be read by more people than its folder",
        "comity/safe_files.py",
        "mode = PRIVATE_FILE if private else PRIVATE_FILE | self._mode & 0o666",
        "mode = PRIVATE_FILE if private else PRIVATE_FILE | 0o666",
        f"{FILES}::test_nothing_is_more_open_than_its_folder",
    ),
]

SECURE_AGGREGATION = [
    Mutant(
        "sites add too little noise for the fewest survivors",
        "comity/privacy/secagg/noise.py",
        "return sigma / math.sqrt(threshold - colluders)",
        "return sigma / math.sqrt(threshold)",
        f"{SHARES}::test_what_remains_if_colluders_tell_their_noise",
    ),
    Mutant(
        "discrete noise is accounted for as if it were continuous",
        "comity/privacy/composition.py",
        "any(r.mechanism == DISCRETE for r in releases)",
        "not releases",
        f"{SHARES}::test_discrete_noise_is_accounted_for_by_renyi_divergences",
    ),
    Mutant(
        "a site's change is not clipped before it enters a noisy sum",
        "comity/privacy/secagg/encoding.py",
        "shrink = min(1.0, self.clip / norm * ROUNDING) if norm else 1.0",
        "shrink = 1.0",
        f"{SECURE}::test_the_sensitivity_bounds_every_reply",
    ),
    Mutant(
        "the server chooses weights in a sum with noise",
        "comity/deploy/secure_terms.py",
        "if self.noise and head.by_samples:",
        "if head.by_samples and not head.run:",
        f"{SHARES}::test_sites_with_noise_accept_no_weights",
    ),
    Mutant(
        "the account doubles the noise of the sites in a sum",
        "comity/algorithms/dp.py",
        'return Release("party", "discrete gaussian", C, self.method.sigma * C)',
        'return Release("party", "discrete gaussian", C, 2 * self.method.sigma * C)',
        f"{SHARES}::test_the_account_is_against_the_server",
    ),
    Mutant(
        "a site reveals shares for a list that too few have signed",
        "comity/privacy/secagg/site.py",
        "if self.name not in signers or len(signers) < self._terms.threshold:",
        "if self.name not in signers:",
        f"{SECURE_ATTACKS}::test_signatures_that_do_not_count",
    ),
    Mutant(
        "a site does not check who has signed the list of survivors",
        "comity/privacy/secagg/site.py",
        'if self._verifies(name, text, signatures.signatures.get(name, ""))',
        "if name in signatures.signatures",
        f"{SECURE_ATTACKS}::test_signatures_that_do_not_count",
    ),
    Mutant(
        "a site masks a second reply for one call",
        "comity/privacy/secagg/site.py",
        "            self._log.claim(terms)\n",
        "",
        f"{SECURE_ATTACKS}::test_a_restarted_site_masks_no_second_reply",
    ),
    Mutant(
        "a site accepts keys that their owner has not signed",
        "comity/privacy/secagg/site.py",
        "if not self._verifies(keys.name, signed_keys_text(keys), keys.signature):",
        "if not keys.signature:",
        f"{SECURE_ATTACKS}::test_replaced_keys",
    ),
    Mutant(
        "two disjoint lists of survivors reach the threshold",
        "comity/privacy/secagg/terms.py",
        "max((sites + colluders) // 2 + 1, colluders + LEAST_HONEST)",
        "colluders + LEAST_HONEST",
        f"{SECURE}::test_the_least_threshold",
    ),
    Mutant(
        "a server unmasks with a wrong seed",
        "comity/privacy/secagg/server.py",
        "if commitment(seed).hex() != self._keys[name].commitment:",
        "if not seed:",
        f"{SECURE_ATTACKS}::test_wrong_shares",
    ),
]

RESULTS = [
    Mutant(
        "the best of several methods is chosen without the Bonferroni correction",
        "comity/studies/party_verdicts.py",
        "tail=0.025 / methods",
        "tail=0.025",
        f"{GAIN}::test_the_interval_over_seeds_by_hand",
    ),
    Mutant(
        "intervals leave out the variance of training",
        "comity/studies/estimate.py",
        "math.sqrt(self.sampling + self.training)",
        "math.sqrt(self.sampling)",
        f"{GAIN}::test_the_interval_over_seeds_by_hand",
    ),
    Mutant(
        "the variance of the test samples falls with more seeds",
        "comity/studies/party_verdicts.py",
        "sampling = statistics.fmean(gain.error**2 for gain in gains)",
        "sampling = statistics.fmean(gain.error**2 for gain in gains) / len(gains)",
        f"{GAIN}::test_the_interval_over_seeds_by_hand",
    ),
    Mutant(
        "the interval of a gain is too narrow for small test sets",
        "comity/measure/gain.py",
        "    b = better + 0.5\n    c = worse + 0.5\n    n = count + 2.0\n",
        "    b, c, n = better, worse, count\n",
        f"{GAIN}::test_the_interval_of_accuracy_by_hand",
    ),
    Mutant(
        "a gain compares two different sets of test samples",
        "comity/measure/gain.py",
        "if not torch.equal(now.truth, before.truth):",
        "if len(now.truth) != len(before.truth):",
        f"{GAIN}::test_a_party_without_a_metric_has_no_gain",
    ),
    Mutant(
        "a split file with a test sample in training is used",
        "comity/data/split.py",
        "if uses[list(share.test)].any():",
        "if len(uses) == 0:",
        "tests/data/test_splits.py::test_training_on_test_samples_is_refused",
    ),
    Mutant(
        "parties train on their test samples (own)",
        "comity/data/protocols.py",
        "return own.positions[~is_test], own.positions[is_test]",
        "return own.positions, own.positions[is_test]",
        "tests/data/test_protocols.py::test_own_uses_every_sample_once",
    ),
    Mutant(
        "parties train on their validation samples",
        "comity/data/federation.py",
        "tuple(train[~is_validation].tolist())",
        "tuple(train.tolist())",
        "tests/data/test_protocols.py::test_own_uses_every_sample_once",
    ),
    Mutant(
        "early stopping looks at the test samples",
        "comity/runs/evaluation.py",
        "scores = [e.validation for e in evaluations if e.validation.count]",
        "scores = [e.test for e in evaluations if e.test.count]",
        "tests/runs/test_patience.py::test_the_validation_part_decides_where_there_is_one",
    ),
    Mutant(
        "the best round is chosen by the test samples",
        "comity/runs/summary.py",
        "{t: metric.sign * mean(v, validations) for t, v in validation.items()}",
        "{t: metric.sign * mean(v, tests) for t, v in test.items()}",
        "tests/runs/test_summary.py::test_the_best_round_is_chosen_on_validation_samples",
    ),
]

MUTANTS: tuple[Mutant, ...] = (
    *NOISE_AND_CLIPPING,
    *DECLARED_NOISE,
    *COMPOSITION,
    *KEYS,
    *RELEASES,
    *SITES,
    *POLICIES,
    *MESSAGES,
    *FILES_AND_TRUST,
    *SECURE_AGGREGATION,
    *RESULTS,
)
