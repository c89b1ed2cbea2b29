"""Receivers that read late get what was offered, and nothing that came to lie there since."""

import numpy as np
from nightly_cases import first_and_nightly
from safetensors.numpy import save_file

from flstream.streaming.api import add_arrays, add_file

MIB = 1 << 20


@first_and_nightly("how", ["abort", "timeout", "quorum", "closed", "detached"], brief=2)
def test_memory_that_was_lent_is_not_read_once_the_offer_has_settled(attackers, how):
    array = np.full(8 * MIB, 1, np.uint8)
    others = ["site-2"] if how == "quorum" else []
    ref = add_arrays(
        attackers.service, {"a": array}, ["site-1", *others], quorum=1 if others else None
    )
    attacker = attackers.start("site-1", "late", ref.token, array.nbytes, lends=True)
    assert attacker.says() == "asked"
    match how:
        case "abort":
            ref.abort("no more")
        case "timeout":
            assert ref.wait(0.01).status == "waiting"
            ref.abort("it took too long")
        case "quorum":
            ref.receiver_done("site-2", None)
            assert ref.wait(10).ok
        case "closed":
            attackers.service.close()
        case "detached":
            attackers.service.detach("site-1")
            assert ref.wait(10).status == "aborted"
    # Its owner may use the memory for whatever it likes from here on.
    array[:] = 0xEE
    attacker.go_on()
    count, foreign = attacker.says().split()
    assert int(count) >= MIB
    assert int(foreign) == 0


@first_and_nightly("what", ["array", "file"])
@first_and_nightly("attack", ["late", "splices"], brief=3)
def test_a_receiver_that_is_not_trusted_has_no_pages_to_hold_on_to(
    attackers, tmp_path, what, attack
):
    path, array = tmp_path / "m.safetensors", np.full(8 * MIB, 1, np.uint8)
    if what == "array":
        ref = add_arrays(attackers.service, {"a": array}, ["site-1"])
    else:
        save_file({"a": array}, path)
        ref = add_file(attackers.service, path, ["site-1"])
    attacker = attackers.start("site-1", attack, ref.token, array.nbytes)
    assert attacker.says() == "asked"
    ref.abort("no more")
    array[:] = 0xEE
    if what == "file":
        with path.open("r+b") as file:
            file.seek(-array.nbytes, 2)
            file.write(array)
    attacker.go_on()
    count, foreign = attacker.says().split()
    assert int(count) >= 64 << 10
    assert int(foreign) == 0
