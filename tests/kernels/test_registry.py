"""Kernels are installed once if usable, and give a reason otherwise."""

import sys
from types import ModuleType

import pytest

from vaswani.kernels import registry
from vaswani.kernels.registry import KERNELS, active_kernels, hook_in_kernels
from vaswani.model.kernel_slots import KernelSlot


@pytest.fixture
def fresh_registry(monkeypatch):
    """A registry without kernels, in which nothing has been hooked in yet."""
    monkeypatch.setattr(registry, "KERNELS", ())
    registry.hook_in_kernels.cache_clear()
    yield monkeypatch
    registry.hook_in_kernels.cache_clear()


def make_kernel(monkeypatch, name, reason=None):
    """Add a kernel of this name. Returns the list of its calls."""
    module, calls = ModuleType(f"vaswani.kernels.{name}"), []
    module.unavailable = lambda: calls.append("unavailable") or reason
    module.hook_in = lambda: calls.append("hook_in")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(registry, "KERNELS", (*registry.KERNELS, name))
    return calls


def test_a_slot_runs_its_kernel_where_there_is_one():
    @KernelSlot
    def double(number):
        """Twice a number."""
        return 2 * number

    assert (double(2), double.__doc__, double.__name__) == (4, "Twice a number.", "double")
    double.kernel = lambda number: number + number
    assert (double(3), double.plain(3)) == (6, 6)


def test_a_later_kernel_takes_precedence():
    @KernelSlot
    def name_of(number):
        return "plain"

    name_of.put_before(lambda otherwise, number: "even" if number % 2 == 0 else otherwise(number))
    name_of.put_before(lambda otherwise, number: "zero" if number == 0 else otherwise(number))
    assert [name_of(number) for number in (0, 1, 2)] == ["zero", "plain", "even"]


def test_kernels_are_checked_and_hooked_in_once(fresh_registry):
    usable = make_kernel(fresh_registry, "usable")
    refused = make_kernel(fresh_registry, "refused", reason="there is no such processor")
    hook_in_kernels()
    assert active_kernels() == {"usable": None, "refused": "there is no such processor"}
    assert usable == ["unavailable", "hook_in"]
    assert refused == ["unavailable"]


def test_a_kernel_that_cannot_be_imported_is_not_used(fresh_registry):
    fresh_registry.setattr(registry, "KERNELS", ("no_such_kernel",))
    assert "no_such_kernel" in active_kernels()["no_such_kernel"]


def test_a_kernel_whose_library_has_changed_is_not_used(fresh_registry):
    make_kernel(fresh_registry, "outdated")
    fresh_registry.delattr(sys.modules["vaswani.kernels.outdated"], "unavailable")
    assert "unavailable" in active_kernels()["outdated"]


def test_every_kernel_says_what_it_computes():
    for name in KERNELS:
        module = __import__(f"vaswani.kernels.{name}", fromlist=["hook_in"])
        assert module.__doc__.splitlines()[0].endswith(".")
