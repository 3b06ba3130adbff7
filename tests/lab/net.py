"""The lab's network: a control namespace with a bridge, one namespace per host on it, no way out.

The machine's own network is not touched. The namespaces are named fl-RACK-ctl and fl-RACK-HOST: two racks never
meet, so they may use the same addresses.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from string import ascii_letters

from tests.lab.ledger import Ledger
from tests.lab.roots import LabError

NETWORK = "10.77"
#: The control namespace's own address: where ssh and Ansible come from.
CONTROL_ADDRESS = f"{NETWORK}.0.1"
CONTROLLER_ADDRESS = f"{NETWORK}.0.2"


def address(number: int) -> str:
    """Address of node ``number`` (1 ...): 10.77.0.11 for the first."""
    return f"{NETWORK}.{number // 200}.{number % 200 + 10}"


def namespace(rack: str, host: str) -> str:
    """Name of a host's network namespace; host 'control' is where the bridge lies."""
    return f"fl-{rack}-{host}"


def interface(host: str) -> str:
    """The host's one interface, eth2 on gpu2 and eth0 on a host without a number: a name that one node has, no other has."""
    return f"eth{host.lstrip(ascii_letters) or 0}"


def ip(script: str, netns: str = "") -> None:
    """Run a batch of ip(8) commands; raises LabError with ip's own words."""
    command = ["ip", *(["-n", netns] if netns else []), "-batch", "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"network of the lab: {done.stderr.strip()}")


def up(ledger: Ledger, hosts: Sequence[tuple[str, str]]) -> str:
    """Make every namespace; ``hosts`` are (name, address). Returns the control namespace's name."""
    control = namespace(ledger.name, "control")
    names = [control, *(namespace(ledger.name, host) for host, _ in hosts)]
    for name in names:
        ledger.add("netns", name)
    ip("".join(f"netns add {name}\n" for name in names))
    bridge = f"link set lo up\nlink add br0 type bridge\naddr add {CONTROL_ADDRESS}/16 dev br0\nlink set br0 up\n"
    for number, (host, _) in enumerate(hosts):
        bridge += f"link add v{number} type veth peer name {interface(host)} netns {namespace(ledger.name, host)}\n"
        bridge += f"link set v{number} master br0 up\n"
    ip(bridge, control)
    for host, where in hosts:
        dev = interface(host)
        ip(f"addr add {where}/16 dev {dev}\nlink set lo up\nlink set {dev} up\n", namespace(ledger.name, host))
    return control
