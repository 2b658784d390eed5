"""`comity audit RUN`: what can be learned of parties' samples from what was really sent, by attacks
that are tried on it.

`view` is what an attacker has, `sent` finds in it what attacks are known for, each attack is a
file; `chance` says how sure a success is, `auditing` puts all into one table.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """`comity.audit` is the name of this folder of modules and of a call: so the folder can be
    called.
    """

    def __call__(self, *given: Any, **named: Any) -> Any:
        from comity.audit.auditing import audit

        return audit(*given, **named)


sys.modules[__name__].__class__ = _Called
