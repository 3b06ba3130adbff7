"""A rack with accounting: slurmdbd and MariaDB are units of the controller, and its other hosts know nothing of them."""

from __future__ import annotations

import pytest

from tests.lab.accounting import OPERATOR, admin_comment, set_admin_comment, wait_in_database
from tests.lab.ledger import own_name
from tests.lab.rack import Rack

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.rack]


def test_a_rack_keeps_its_jobs_in_a_database() -> None:
    with Rack(1, suite="trixie", name=own_name("accounting"), accounting=True) as rack:
        assert rack.ctl("systemctl is-active mariadb slurmdbd slurmctld").split() == ["active"] * 3
        assert rack.nodes[0].run("systemctl is-active mariadb slurmdbd", check=False).stdout.split() == ["inactive"] * 2
        job = rack.submit("#!/bin/sh\ntrue\n", "--gres=gpu:2")
        rack.wait_job(job, "COMPLETED")
        wait_in_database(rack, job)
        set_admin_comment(rack, job, "JS1:by an operator", user=OPERATOR)
        assert admin_comment(rack, job) == "JS1:by an operator"
        assert "gres/gpu=2" in rack.ctl(f"sacct --allusers --noheader --parsable2 --allocations --format=alloctres --jobs={job}")
        rack.controller.reboot()
        rack.controller.wait_ssh()
        rack.wait_idle()
        assert admin_comment(rack, job) == "JS1:by an operator"
