"""The judge of the sequences: what a recorded answer of Slurm shows of the node."""

from __future__ import annotations

import pytest

from tests.slurm.promises import _shows_drained_by

ANN = "ann: riser swap #365229"


@pytest.mark.parametrize(
    ("said", "drained"),
    [
        (f"n2@x@IDLE@x@{ANN}@x@root(0)@x@", False),  # the words of a drain that ann has lifted
        (f"n2@x@IDLE+DRAIN@x@{ANN}@x@root(0)@x@", True),
        (f"n2@x@idle+drain+reboot_requested@x@{ANN}@x@", True),
        ("n2@x@IDLE+DRAIN@x@another's@x@", False),
        (f"n1@x@IDLE+DRAIN@x@{ANN}@x@\nn2@x@IDLE@x@{ANN}@x@\nn22@x@IDLE+DRAIN@x@{ANN}@x@", False),
        (f"n1@x@IDLE@x@none@x@\nn2@x@IDLE+DRAIN@x@{ANN}@x@", True),
        ("", False),
    ],
)
def test_whose_words_hold_the_node(said: str, drained: bool) -> None:
    assert _shows_drained_by(ANN, said, "n2") is drained
