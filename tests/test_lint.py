"""What a reader cannot check by eye: no global randomness, no hidden state, no reaching into
another party, small files.

And that training is asked for in one way: party functions are coroutines, losses are not taken
apart, two context variables.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import comity
from comity import algorithms
from comity.core import Server, on_party

pytestmark = pytest.mark.quick

Rule = Callable[[ast.Module], Iterator[tuple[int, str]]]

SOURCE = Path(comity.__file__).parent
ALGORITHMS = sorted((SOURCE / "algorithms").glob("*.py"))
CORE = sorted((SOURCE / "core").glob("*.py"))
EVERYTHING = sorted(SOURCE.rglob("*.py"))

DRAWS = {
    "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "binomial",
    "rand_like", "randn_like", "randint_like",
}  # fmt: skip
IN_PLACE = {
    "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_",
    "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "trunc_normal_", "orthogonal_",
}  # fmt: skip
SEEDS = {
    "manual_seed",
    "seed",
    "initial_seed",
    "set_rng_state",
    "get_rng_state",
    "default_generator",
}
FUNCTIONS = {
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
    "gumbel_softmax",
}
NUMPY_OBJECTS = {"Generator", "PCG64", "SeedSequence", "BitGenerator"}
PARTIES_AT_ENGINES = {"_runner", "_summer", "_sites"}
NOT_ON_A_SERVER = {
    "state",
    "states",
    "sites",
    "engine",
    "deliver",
    "evaluate",
    "alone",
    "load",
    "save",
}
CONTEXT = {
    "training/kernels.py": "TAPE",
    "training/gradient_count.py": "_COUNT",
    "engines/purity.py": "_CONTENTS",  # for the whole run of `comity check`
}
TAPES = {"training/kernels.py", "training/descent.py", "training/dp_sgd.py"}
LENDS_THE_GLOBAL_GENERATOR = "models/layer_stream.py"
WATCHES_THE_GLOBAL_GENERATOR = "engines/purity.py"  # reads its state, to refuse unkeyed draws
OPENING = {"unseal", "open_sealed"}
OPENS_SEALED_MESSAGES = {
    "wire/codec.py",
    "base/record.py",
    "wire/sealing.py",
    "engines/site.py",
    "runs/recording.py",  # in a simulation that is asked to keep all messages
    "deploy/site_calls.py",
}
ASKS_WHAT_A_LOSS_IS = "engines/stacked/batched_training.py"


def dotted(node: ast.AST) -> str:
    """`torch.random.manual_seed` as text; empty if it is not a plain path."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def imported(tree: ast.AST) -> dict[str, str]:
    """Local name -> what it stands for."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            found |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    return found


def full(node: ast.AST, names: dict[str, str]) -> str:
    """A path with its first name resolved: `F.dropout` is torch.nn.functional.dropout."""
    head, dot, rest = dotted(node).partition(".")
    return names.get(head, head) + dot + rest


def seeds(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Torch's global generator, set or looked at."""
    names = imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        path = full(node, names)
        if path.startswith("torch") and path.rpartition(".")[2] in SEEDS:
            yield node.lineno, f"touches the global generator: {path}"


def draws(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Randomness that does not come from a generator of its own."""
    yield from seeds(tree)
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            if any(m.partition(".")[0] in ("random", "secrets", "uuid") for m in modules):
                yield node.lineno, "imports a module of global randomness"
        if isinstance(node, ast.Attribute | ast.Name):
            path = full(node, names)
            if path.startswith("numpy.random.") and path.split(".")[2] not in NUMPY_OBJECTS:
                yield node.lineno, f"draws from numpy's global generator: {path}"
        if not isinstance(node, ast.Call):
            continue
        own = any(k.arg == "generator" for k in node.keywords)
        path = full(node.func, names)
        last = path.rpartition(".")[2]
        if path.startswith("torch") and (last in DRAWS or last in FUNCTIONS) and not own:
            yield node.lineno, f"{path} without generator="
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in IN_PLACE | {"multinomial", "bernoulli"}
            and not own
        ):
            yield node.lineno, f".{node.func.attr}() without generator="


def globals_(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield node.lineno, f"global {', '.join(node.names)}"


MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTATORS = {
    "append",
    "extend",
    "insert",
    "add",
    "update",
    "pop",
    "popitem",
    "remove",
    "discard",
    "clear",
    "setdefault",
    "sort",
}
CACHES = {"cache", "lru_cache", "functools.cache", "functools.lru_cache"}


def singletons(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Module-level containers that could carry something from one run to the next.

    A table of constants is fine: capitals, only literals inside, and nothing in the file writes to
    it.
    """
    held: dict[str, ast.AST] = {}
    for line in tree.body:
        targets = (
            line.targets
            if isinstance(line, ast.Assign)
            else [line.target]
            if isinstance(line, ast.AnnAssign)
            else []
        )
        value: Any = getattr(line, "value", None)
        display_name = isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] not in (
            "frozenset", "tuple", "TypeVar", "int", "float", "compile",
        )  # fmt: skip
        for target in targets:
            name = dotted(target)
            if name.startswith("__") or not (display_name or isinstance(value, MUTABLE)):
                continue
            held[name] = value
            try:
                ast.literal_eval(value)
            except (ValueError, TypeError):
                yield line.lineno, f"module-level {name} is not a constant"
            if not name.isupper():
                yield line.lineno, f"module-level {name} is mutable"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store | ast.Del)
            and dotted(node.value) in held
        ):
            yield node.lineno, f"writes to module-level {dotted(node.value)}"
        method = node.func if isinstance(node, ast.Call) else None
        if (
            isinstance(method, ast.Attribute)
            and method.attr in MUTATORS
            and dotted(method.value) in held
        ):
            yield method.lineno, f"writes to module-level {dotted(method.value)}"
        if isinstance(node, ast.AugAssign) and dotted(node.target) in held:
            yield node.lineno, f"writes to module-level {dotted(node.target)}"
        if isinstance(node, ast.FunctionDef) and any(
            dotted(d.func if isinstance(d, ast.Call) else d) in CACHES for d in node.decorator_list
        ):
            yield node.lineno, f"{node.name} remembers earlier calls"


def peeking(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Opening a sealed message, or taking a party's state past the server."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (
            node.attr.startswith("_Sealed") or node.attr in OPENING
        ):
            yield node.lineno, "opens a sealed message"
        if isinstance(node, ast.Constant) and str(node.value).startswith("_Sealed"):
            yield node.lineno, "opens a sealed message by name"
        if isinstance(node, ast.ImportFrom) and any(alias.name in OPENING for alias in node.names):
            yield node.lineno, "imports what opens sealed messages"


def reaching(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Going past the server's exchange to the engine's parties."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PARTIES_AT_ENGINES:
            yield node.lineno, f"reaches for {node.attr} past the server's exchange"
        if isinstance(node, ast.Constant) and node.value in PARTIES_AT_ENGINES:
            yield node.lineno, f"reaches for {node.value} by name"


def contexts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Context variables: what is passed on past all signatures."""
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and full(node.func, names) == "contextvars.ContextVar":
            yield node.lineno, "has a context variable"


def taking_apart(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Functions taken apart: their instructions, cells and types."""
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            if any(m.partition(".")[0] == "dis" for m in modules):
                yield node.lineno, "imports dis"
        if isinstance(node, ast.Attribute) and node.attr in ("__closure__", "cell_contents"):
            yield node.lineno, f"looks at a function's {node.attr}"
        if isinstance(node, ast.Attribute | ast.Name):
            path = full(node, names)
            if path in ("types.CellType", "types.CodeType", "types.FunctionType"):
                yield node.lineno, f"uses {path}"


def outside_isinstance(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The same, apart from asking whether something is a function."""

    class Without(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            return (
                ast.copy_location(ast.Constant(True), node)
                if dotted(node.func) == "isinstance"
                else self.generic_visit(node)
            )

    yield from taking_apart(Without().visit(tree))


def tapes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Uses of the tape that linear layers are recorded on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            named = [a.name for a in node.names]
        elif isinstance(node, ast.Attribute | ast.Name):
            named = [dotted(node).rpartition(".")[2]]
        else:
            continue
        if "TAPE" in named:
            yield node.lineno, "uses the tape"


def plain_party_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Party functions (a party's state, a message, party, key) that are no coroutines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            given = [a.arg for a in node.args.args if a.arg != "self"]
            if len(given) == 4 and given[2:] == ["party", "key"]:
                yield node.lineno, f"{node.name} is a party function and no `async def`"


def handed_over(cls: type) -> set[str]:
    """The coroutine methods of a class that it, or one that it is made from, hands on by name: to
    `server.call` in the end.
    """
    found = set()
    for base in cls.__mro__:
        if base.__module__.startswith(("comity.", __name__)):
            nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))))
            display_name = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
            own = [
                node
                for node in nodes
                if isinstance(node, ast.Attribute) and dotted(node.value) == "self"
            ]
            found |= {node.attr for node in own if id(node) not in display_name}
    return {name for name in found if inspect.iscoroutinefunction(getattr(cls, name, None))}


def wrongly_marked(cls: type) -> list[str]:
    """Party functions without `@on_party` above them, and methods that have it and are none."""
    given = handed_over(cls)
    defined = [
        (base.__qualname__, name, method)
        for base in cls.__mro__
        for name, method in vars(base).items()
    ]
    marks = [
        (who, name, name in given, hasattr(method, "__on_party__")) for who, name, method in defined
    ]
    return [
        f"{who}.{name} {'is' if is_one else 'is not'} a party function"
        for who, name, is_one, said in marks
        if is_one is not said
    ]


def engines(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Nothing but the run knows where parties live."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
            if node.level:
                yield node.lineno, "relative import"
        else:
            continue
        if any(m == "comity.engines" or m.startswith("comity.engines.") for m in modules):
            yield node.lineno, "imports an engine"


@cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree, which no rule changes."""
    return ast.parse(path.read_text(encoding="utf-8"))


def check(path: Path, *rules: Rule) -> None:
    tree = parsed(path)
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {why}" for rule in rules for line, why in rule(tree)
    ]
    assert not found, "\n".join(found)


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", ALGORITHMS + CORE, ids=name)
def test_no_global_randomness_and_no_global_statements(path: Path) -> None:
    check(path, draws, globals_)


@pytest.mark.parametrize("path", [p for p in ALGORITHMS if p.name != "__init__.py"], ids=name)
def test_algorithms_hold_no_state_of_their_own(path: Path) -> None:
    check(path, singletons, reaching)


def test_a_server_has_no_way_to_a_partys_state() -> None:
    """Types say so already."""
    assert not NOT_ON_A_SERVER & set(dir(Server))


@pytest.mark.parametrize("path", EVERYTHING, ids=name)
def test_losses_are_not_taken_apart(path: Path) -> None:
    check(path, outside_isinstance if name(path) == ASKS_WHAT_A_LOSS_IS else taking_apart)


@cache
def findings() -> dict[Rule, set[str]]:
    """The files in which each of the rules that hold for all of them finds something: every file is
    parsed once.
    """
    rules = (contexts, tapes, seeds, peeking)
    files: dict[Rule, set[str]] = {rule: set() for rule in rules}
    for path in EVERYTHING:
        tree = parsed(path)
        for rule in rules:
            if list(rule(tree)):
                files[rule].add(name(path))
    return files


def test_context_variables_are_few() -> None:
    assert findings()[contexts] == CONTEXT.keys()
    for file, variable in CONTEXT.items():
        tree = parsed(SOURCE / file)
        ((line, _),) = contexts(tree)
        assert [
            dotted(n.target) for n in tree.body if isinstance(n, ast.AnnAssign) and n.lineno == line
        ] == [variable]


def test_the_tape_is_the_descents() -> None:
    assert findings()[tapes] == TAPES


def test_the_global_generator_is_lent_in_one_place() -> None:
    assert findings()[seeds] == {LENDS_THE_GLOBAL_GENERATOR, WATCHES_THE_GLOBAL_GENERATOR}
    watching = (SOURCE / WATCHES_THE_GLOBAL_GENERATOR).read_text(encoding="utf-8")
    assert "set_rng_state" not in watching
    assert "manual_seed" not in watching


@pytest.mark.parametrize("path", ALGORITHMS, ids=name)
def test_party_functions_are_coroutines(path: Path) -> None:
    check(path, plain_party_functions)


@pytest.mark.parametrize("method", algorithms.names())
def test_party_functions_are_marked_and_nothing_else_is(method: str) -> None:
    assert wrongly_marked(algorithms.find(method)) == []


def test_sealed_messages_are_opened_where_they_arrive() -> None:
    assert findings()[peeking] == OPENS_SEALED_MESSAGES


@pytest.mark.parametrize("path", ALGORITHMS + CORE, ids=name)
def test_algorithms_and_core_know_no_engine(path: Path) -> None:
    check(path, engines)


def test_test_files_have_names_of_their_own() -> None:
    """pytest cannot collect two modules of one name in one process."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [twice for twice, count in names.items() if count > 1] == []


def test_there_is_something_to_check() -> None:
    assert {"fedavg.py", "dbe.py", "adcol.py"} <= {p.name for p in ALGORITHMS}
    assert {"server.py", "algorithm.py", "wrapper.py"} <= {p.name for p in CORE}


# --- the lint itself


BAD = {
    draws: [
        "import torch\ntorch.rand(3)",
        "import torch as t\nt.randn(3)",
        "from torch import randperm\nrandperm(3)",
        "import torch\ntorch.manual_seed(0)",
        "import torch\ntorch.random.manual_seed(0)",
        "from torch.random import manual_seed\nmanual_seed(0)",
        "import torch\ntorch.randn_like(x)",
        "import numpy as np\nnp.random.rand(3)",
        "import numpy\nnumpy.random.seed(0)",
        "from numpy.random import default_rng\ndefault_rng()",
        "import random",
        "from random import shuffle",
        "x.normal_()",
        "x.uniform_(0, 1)",
        "weights.multinomial(3)",
        "import torch.nn.functional as F\nF.dropout(x)",
        "from torch import nn\nnn.init.kaiming_uniform_(w)",
    ],
    globals_: ["x = 1\ndef f():\n    global x\n    x = 2"],
    singletons: [
        "cache = {}",
        "SEEN: list[int] = []\ndef f(x):\n    SEEN.append(x)",
        "TABLE = {}\ndef f(x):\n    TABLE[x] = 1",
        "COUNT = collections.Counter()",
        "POOL = Pool()",
        "from functools import cache\n@cache\ndef f(x):\n    return x",
        "TABLE = {'a': 1}\nTABLE |= {'b': 2}",
    ],
    peeking: [
        "message._Sealed__content",
        "getattr(message, '_Sealed__content')",
        "from comity.base.record import unseal",
        "record.unseal(message)",
        "from comity.base.record import open_sealed",
    ],
    reaching: [
        "self.server._sites[0]",
        "server._runner.run(call, messages, {})",
        "getattr(server, '_runner')",
        "engine.sites._sites",
    ],
    contexts: [
        "from contextvars import ContextVar\nX: ContextVar[int] = ContextVar('x')",
        "import contextvars as c\ndef f():\n    return c.ContextVar('x')",
    ],
    taking_apart: [
        "import dis",
        "from dis import get_instructions",
        "from types import CellType\nCellType(3)",
        "import types\ntypes.FunctionType(f.__code__, {})",
        "from types import FunctionType\nisinstance(f, FunctionType)",
        "f.__closure__",
        "cell.cell_contents",
    ],
    outside_isinstance: [
        "from types import FunctionType\nFunctionType(f.__code__, {})",
        "from types import FunctionType\nisinstance(f, FunctionType)\nFunctionType(f.__code__, {})",
        "import dis",
    ],
    tapes: ["from comity.training.kernels import TAPE", "kernels.TAPE.get()"],
    plain_party_functions: [
        "class A:\n    def local(self, mine, m, party, key):\n        return mine, None",
        (
            "class A:\n    def warm_up(self, F_i: Params, message: Model, party: Party, key: Key) ->"
            " None: ..."
        ),
    ],
    seeds: ["import torch\ntorch.get_rng_state()", "import torch\ntorch.cuda.set_rng_state(s)"],
    engines: [
        "import comity.engines.loop",
        "from comity.engines import loop",
        "from comity import engines",
        "from .. import engines",
    ],
}
GOOD = {
    draws: [
        "import torch\ntorch.randperm(3, generator=g)",
        "import torch\ntorch.Generator().manual_seed(3)",
        "import numpy as np\nnp.random.Generator(np.random.PCG64(1))",
        "x.normal_(generator=g)",
        "import torch\ntorch.zeros(3)",
    ],
    singletons: [
        "NAMES = {'a': 'b'}\ndef f(x):\n    return NAMES[x]",
        "OFFSET = 'dbe.offset'",
        "T = TypeVar('T')",
    ],
    reaching: ["server.call(self.local, messages)", "mine.state"],
    outside_isinstance: ["from types import FunctionType\nisinstance(f, FunctionType)"],
    plain_party_functions: [
        "class A:\n    async def local(self, mine, m, party, key):\n        return mine, None",
        "class A:\n    def deployed_model(self, mine, m, party): ...",
        "class A:\n    def init_party(self, key, party): ...",
    ],
    seeds: ["import torch\ntorch.Generator().manual_seed(3)"],
    engines: ["from comity.core import Server", "import torch"],
}


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, texts in BAD.items() for text in texts]
)
def test_the_lint_finds_what_it_looks_for(rule: Rule, text: str) -> None:
    assert list(rule(ast.parse(text)))


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, texts in GOOD.items() for text in texts]
)
def test_the_lint_leaves_the_rest_alone(rule: Rule, text: str) -> None:
    assert not list(rule(ast.parse(text)))


class Right:
    def round(self, server: Any) -> None:
        server.call(self.local, {})
        self.averaged(server, self.first if server else self.second)

    def averaged(self, server: Any, posterior: Any) -> None:
        server.call(posterior, {})

    @on_party
    async def local(self) -> None:
        await self.helper()

    @on_party
    async def first(self) -> None: ...
    @on_party
    async def second(self) -> None: ...
    async def helper(self) -> None: ...


class Forgotten(Right):
    async def second(self) -> None: ...


class Superfluous(Right):
    @on_party
    async def helper(self) -> None: ...


def test_the_lint_knows_party_functions() -> None:
    assert handed_over(Right) == {"local", "first", "second"}
    assert wrongly_marked(Right) == []
    assert wrongly_marked(Forgotten) == ["Forgotten.second is a party function"]
    assert wrongly_marked(Superfluous) == ["Superfluous.helper is not a party function"]
