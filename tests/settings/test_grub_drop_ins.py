"""What stands in /etc/default/grub.d after our drop-in: kdump-tools.cfg does on Debian and Ubuntu, and takes nothing away."""

from __future__ import annotations

import pytest

from fairlead.errors import ConfigError
from fairlead.settings import kernel_cmdline
from tests.settings.test_kernel_settings import WORDS, boot


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ('"$GRUB_CMDLINE_LINUX_DEFAULT crashkernel=2G-4G:320M,4G-32G:512M"', True),  # kdump-tools of Debian and Ubuntu
        ('"${GRUB_CMDLINE_LINUX_DEFAULT} quiet"', True),
        ('"nomodeset $GRUB_CMDLINE_LINUX_DEFAULT"', True),
        ('"nomodeset$GRUB_CMDLINE_LINUX_DEFAULT"', False),
        ('"$GRUB_CMDLINE_LINUX_DEFAULT iommu=soft"', False),  # the last value of a key wins
        ('"$GRUB_CMDLINE_LINUX crashkernel=512M"', False),  # another variable: ours is gone
        ('"$GRUB_CMDLINE_LINUX_DEFAULT $(more)"', False),
        ("$GRUB_CMDLINE_LINUX_DEFAULT", False),
        ('""', False),
    ],
)
def test_a_later_drop_in_that_only_adds_words_takes_nothing_away(line: str, kept: bool) -> None:
    after = {"/etc/default/grub.d/kdump-tools.cfg": f"# GRUB_CMDLINE_LINUX\nGRUB_CMDLINE_LINUX_DEFAULT={line}\n"}
    if kept:
        assert kernel_cmdline.plan(WORDS, boot(**after))
        return
    with pytest.raises(ConfigError, match=r"kdump-tools.cfg: GRUB_CMDLINE_LINUX_DEFAULT: is read after"):
        kernel_cmdline.plan(WORDS, boot(**after))
