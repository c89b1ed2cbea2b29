"""What scripts import, for a process without flstream: the reference's side of each call."""

import sys
import types

FLMetaKey = types.SimpleNamespace(NUM_STEPS_CURRENT_ROUND="NUM_STEPS_CURRENT_ROUND")
for _name, _names in {"apis": {}, "apis.fl_constant": {"FLMetaKey": FLMetaKey}}.items():
    _module = types.ModuleType(f"nvflare.{_name}")
    vars(_module).update(_names, __path__=[])
    sys.modules[_module.__name__] = _module
