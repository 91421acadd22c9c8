"""kvrope.last_fault and kvrope.check where no fault can be: the CPU raises in the call itself."""

import kvrope
import pytest
import torch

from cases import Case, build


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")], ids=["name", "device"])
def test_cpu_records_no_fault(device) -> None:
    with pytest.raises(IndexError):
        build(Case(slots=[3, 17, 0, 127, 128])).run()
    assert kvrope.last_fault(device) is None
    assert kvrope.check(device) is None


@pytest.mark.parametrize("ask", [kvrope.last_fault, kvrope.check], ids=["last_fault", "check"])
@pytest.mark.parametrize("device", ["meta", "nonsense", "cuda:99", 1.5, None], ids=str)
def test_device_without_fault_record(ask, device) -> None:
    """An error that names the device; never None, which would read as "no fault"."""
    with pytest.raises((ValueError, TypeError, RuntimeError), match="(?i)device|cuda|expected"):
        ask(device)


def test_fault_is_a_named_tuple() -> None:
    fault = kvrope.Fault("slot_out_of_range", "slot_mapping", 2, 128)
    assert fault._fields == ("kind", "argument", "row", "value")
    assert fault == ("slot_out_of_range", "slot_mapping", 2, 128)


MESSAGES = {
    "slot": (dict(slots=[3, 17, 128, 0, 64]), r"slot_mapping\[2\] is 128, expected a slot below 128"),
    "window": (
        dict(slots=[0, 1, 2, 3, 4], swa=[5, 6, 128, 7, 8]),
        r"swa_slot_mapping.*128.*row 2.*below 128",
    ),
    "window length": (
        dict(slots=[0, 1, 5, 3, 4], swa=[5, 6, 9, 7, 8]),
        r"slot_mapping\[2\] is 5, expected.* below 5",
    ),
    "position": (dict(pos=[0, 1, 256, 2, 3]), r"pos\[2\] is 256, expected 0 to 255"),
    "negative position": (dict(pos=[0, 1, -1, 2, 3]), r"pos\[2\] is -1, expected 0 to 255"),
    "offset": (
        dict(pos=[0, 1, 250, 2, 3], offs=[0, 0, 6, 0, 0]),
        r"pos\[2\] \+ offs.* is 256, expected 0 to 255",
    ),
    "axis": (
        dict(mrope_section=(7, 12, 13), pos=[[0, 1, 2, 3, 4], [0, 1, 300, 3, 4], [0, 1, -1, 3, 4]]),
        r"pos\[:, 2\] is 300, expected 0 to 255",
    ),
    "axis by its offset": (
        dict(mrope_section=(7, 12, 13), pos=[[0] * 5, [0] * 5, [0, 0, 250, 0, 0]], offs=[0, 0, 6, 0, 0]),
        r"pos\[:, 2\] \+ offs.* is 256, expected 0 to 255",
    ),
}


@pytest.mark.parametrize("what", MESSAGES, ids=lambda what: what.replace(" ", "_"))
def test_messages_on_the_cpu(what: str) -> None:
    case, message = MESSAGES[what]
    with pytest.raises(IndexError, match=r"^fused_qk_rope_reshape_and_cache: " + message):
        build(Case(**case)).run()
