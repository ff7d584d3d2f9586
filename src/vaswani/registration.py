"""Register the models with transformers' Auto classes, without importing transformers or the models.

`import vaswani` has to be quick, so the registration waits until transformers' Auto classes are imported. It
registers stand-ins, which import a class when it is used, because transformers imports its Auto classes in
the middle of other imports, when our models cannot be imported yet. After the module of a class is imported,
the class replaces its stand-in.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from vaswani.auto_classes import MODELING_AUTO, models_of

CONFIGURATION_AUTO = "transformers.models.auto.configuration_auto"
CONFIGURATION = "vaswani.model.configuration_vaswani"
SPARSIFY = "vaswani.interop.sparsify"
MODELING = tuple(f"vaswani.model.modeling_vaswani{kind}" for kind in ("", "_encoder", "_decoder"))

CONFIGURATIONS = {  # model type → module and name of its class
    "vaswani": (CONFIGURATION, "VaswaniConfig"),
    "vaswani_encoder": (CONFIGURATION, "VaswaniEncoderConfig"),
    "vaswani_decoder": (CONFIGURATION, "VaswaniDecoderConfig"),
}

_imported: dict[str, ModuleType] = {}  # the modules above that are fully imported


def register_auto_classes() -> None:
    """Register the models now, or when transformers' Auto classes are imported."""
    for name in (CONFIGURATION_AUTO, MODELING_AUTO, CONFIGURATION, *MODELING):
        _after_import(name, _register)


def _register(imported: ModuleType) -> None:
    """Register what can be registered now that one more module is imported."""
    _imported[imported.__name__] = imported
    if CONFIGURATION_AUTO in _imported:
        table = _imported[CONFIGURATION_AUTO].CONFIG_MAPPING
        for model_type, (module, name) in {**CONFIGURATIONS, **_sparse_configurations()}.items():
            if _is_free(table, model_type):
                table.register(model_type, _class(module, name))
    if MODELING_AUTO in _imported:
        # With label smoothing, the library's Trainer shifts labels only for models named in this mapping.
        _imported[MODELING_AUTO].MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["vaswani_decoder"] = "VaswaniForCausalLM"
    if MODELING_AUTO in _imported and CONFIGURATION in _imported:
        for module, name in CONFIGURATIONS.values():
            if module == CONFIGURATION:
                _register_models(getattr(_imported[CONFIGURATION], name))


def _sparse_configurations() -> dict[str, tuple[str, str]]:
    """Return model type → module and name of the sparse configurations that `sparsify` can make."""
    names = _imported[CONFIGURATION_AUTO].CONFIG_MAPPING_NAMES
    # If several types share a class, the last of them counts.
    own = {name: model_type for model_type, name in names.items()}
    return {f"vaswani_sparse_{model_type}": (SPARSIFY, f"Sparse{name}") for name, model_type in own.items()}


def _register_models(config_class: Any) -> None:
    for auto_class, place in config_class.auto_classes.items():
        if auto_class != "AutoConfig":
            module, _, name = place.rpartition(".")
            auto = getattr(_imported[MODELING_AUTO], auto_class)
            if _is_free(models_of(auto), config_class):
                auto.register(
                    config_class, _class(f"vaswani.model.{module}", name, config_class=config_class)
                )


def _is_free(table: Any, key: Any) -> bool:
    """Return whether a table has a stand-in or nothing for a key; a class that a user registered stays."""
    return key not in table or isinstance(table[key], ClassStandIn)


def _class(module: str, name: str, **attributes: Any) -> Any:
    if module in _imported:
        return getattr(_imported[module], name)
    return ClassStandIn(module, name, attributes)


class ClassStandIn:
    """Stand-in that imports its class when it is called or asked for an unknown attribute."""

    def __init__(self, module: str, name: str, attributes: dict[str, Any]):
        self.__dict__.update(attributes, __module__=module, __name__=name, __qualname__=name)

    @property
    def _class(self) -> type:
        return getattr(import_module(self.__module__), self.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._class, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._class(*args, **kwargs)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._class)

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._class)

    def __repr__(self) -> str:
        return repr(self._class)


def _after_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call an action with a module: now if it is already imported, else after its import."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Watcher(name, action))


class _Watcher:
    """Finder of one module: it uses the other finders, and calls an action after the module has run."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]):
        self._name, self._action = name, action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        return spec

    def _act_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            del loader.exec_module
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._action(module)

        loader.exec_module = execute_and_act
