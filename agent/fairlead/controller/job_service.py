"""Answers which ended jobs used what, one request for each connection: each user gets their own jobs, and operators get all.

The request is a munge credential with a ``JobQuestion`` as JSON, and the answer is one with a ``JobAnswer``, which only the
asking user can open. A job of somebody else and a job that does not exist get the same answer. systemd starts the service for
each connection (``fairlead-job.socket``, Accept=yes), so that it holds no state.

A login node has no site.toml. So the service computes the notes on each ended job (advice, cost, carbon) from the controller's
site.toml, and its answer has the options too: with them `fairlead job` computes the notes on a running job.
"""

from __future__ import annotations

import pwd
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fairlead.controller import munge
from fairlead.errors import FairleadError, HostError, SlurmError
from fairlead.jobs.job_notes import JobNotes, ReportOptions, notes_of
from fairlead.jobs.node_rows import SINFO, node_gpus_of
from fairlead.jobs.usage_merge import JobReport, merged
from fairlead.jobs.usage_record import without_histograms
from fairlead.model.nodelist import fold
from fairlead.slurm.scontrol import Scontrol

if TYPE_CHECKING:
    from fairlead.controller.job_store import JobStore, StoredRun

PORT = 6830
SECONDS = 10.0
REQUEST_SECONDS = 3  # the whole request comes in this time, or the service ends: a silent peer holds a connection no longer
RETRY_SECONDS = 12.0  # so long the client tries again if the service closes the connection, which it does with too many of them
QUESTION_MAX_BYTES = 16 * 1024
ANSWER_MAX_BYTES = 700_000  # munge's own limit is 1 MiB for the encoded credential
REPORTS_MAX = 1000
Word = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9_.+-]*\Z")]


class JobQuestion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for a job by its id, for the tasks of an array, for one's last jobs, or a user's jobs. most: how many."""

    kind: Literal["job", "array", "last", "user"]
    word: Word = ""
    most: Annotated[int, Meta(ge=1, le=REPORTS_MAX)] = 1


class JobAnswer(Struct, frozen=True, kw_only=True):
    """Holds the reports, and the notes on each of them. An older service sends no notes. bare: the histograms were left out,
    because the answer would be too long. short: so were all values of each node. options: those of the site, as ``ReportOptions``
    of the service's version. trouble: why there is no answer, or "". operator: there is no report, and the asking user may see
    the jobs of all users."""

    reports: Annotated[tuple[JobReport, ...], Meta(max_length=REPORTS_MAX)] = ()
    notes: Annotated[tuple[JobNotes, ...], Meta(max_length=REPORTS_MAX)] = ()
    options: dict[str, Any] = {}
    bare: bool = False
    short: bool = False
    trouble: Annotated[str, Meta(max_length=300)] = ""
    operator: bool = False

    def notes_on(self, at: int) -> JobNotes:
        """Return the notes on the report number ``at``."""
        if len(self.notes) == len(self.reports):
            return self.notes[at]
        return JobNotes(left_out=("advice and cost: the fairlead of the controller is older than this one",))

    def site_options(self) -> ReportOptions | str:
        """Return the options of the site, or in one line why they are not known."""
        if not self.options:
            return "the controller has given no options of the site"
        try:
            return msgspec.convert(self.options, ReportOptions)
        except (msgspec.ValidationError, RecursionError):
            return "the fairlead of the controller is of another version, and has other options"


#: Returns the options of the site, or in one line why they are not known.
Options = Callable[[], "ReportOptions | str"]


def serve(
    source: BinaryIO, sink: BinaryIO, store: str, *, is_operator: Callable[[int, str], bool], options: Options, client: Scontrol
) -> None:
    """Answer one request. Raises HostError for bytes that are no request. The process ends if the request is late."""
    from fairlead.controller.job_store import JobStore  # imports SQLite, which the asking command does not need

    signal.alarm(REQUEST_SECONDS)
    credential = source.readline(QUESTION_MAX_BYTES)
    signal.alarm(0)
    asker = munge.opened(credential)
    told: list[bool] = []

    def operator() -> bool:
        told.append(is_operator(asker.uid, asker.user))
        return told[-1]

    try:
        question = msgspec.json.decode(asker.data, type=JobQuestion)
        with JobStore(store, write=False) as opened:
            reports = reports_for(question, asker.uid, opened, operator, time.time())
        answer = replace(with_notes(reports, options(), client), operator=not reports and any(told))
    except (msgspec.MsgspecError, RecursionError):
        answer = JobAnswer(trouble="the question makes no sense: is this fairlead older than that of the controller?")
    except FairleadError as e:
        answer = JobAnswer(trouble=str(e)[:300])
    sink.write(munge.made(_encoded(answer), for_uid=asker.uid))
    sink.flush()


def reports_for(
    question: JobQuestion, uid: int, store: JobStore, is_operator: Callable[[], bool], now: float
) -> tuple[JobReport, ...]:
    """Return the reports that a user may see. Slurm is asked whether the user is an operator, unless all jobs are the user's."""
    runs = _runs(question, uid, store)
    if not runs or any(each.run.uid != uid for each in runs):
        operator = is_operator()
        runs = [each for each in runs if operator or each.run.uid == uid]
    return tuple(merged(each.run, store.records(each.run), now)[0] for each in runs[: question.most])


def with_notes(reports: tuple[JobReport, ...], options: ReportOptions | str, client: Scontrol) -> JobAnswer:
    """Return an answer with these reports, and the notes on each of them."""
    if isinstance(options, str):
        return JobAnswer(reports=reports, notes=(JobNotes(left_out=(f"advice and cost: {options}",)),) * len(reports))
    gpus = node_gpus({node for report in reports for node in report.run.nodes if report.run.gpus}, client)
    notes = tuple(notes_of(report, options, gpus) for report in reports)
    return JobAnswer(reports=reports, notes=notes, options=msgspec.to_builtins(options))


def node_gpus(nodes: set[str], client: Scontrol) -> Mapping[str, int]:
    """Return how many GPUs each node has in all, empty if slurmctld does not say it."""
    if not nodes:
        return {}
    try:
        text = client.ask(["sinfo", *SINFO, "-n", fold(nodes)])
    except SlurmError:
        return {}
    return {node.node: node.gpus for node in node_gpus_of(text.splitlines(), []) if node.gpus}


def _runs(question: JobQuestion, uid: int, store: JobStore) -> list[StoredRun]:
    if question.kind == "job":
        return store.runs_of(question.word)
    if question.kind == "array":
        return store.runs_of_array(int(question.word)) if question.word.isascii() and question.word.isdigit() else []
    if question.kind == "user" and question.word:
        try:
            return store.runs_of_user(pwd.getpwnam(question.word).pw_uid, question.most)
        except KeyError:
            return []
    return store.runs_of_user(uid, question.most)


def _encoded(answer: JobAnswer) -> bytes:
    data = msgspec.json.encode(answer)
    if len(data) > ANSWER_MAX_BYTES:
        bare = tuple(replace(report, records=tuple(map(without_histograms, report.records))) for report in answer.reports)
        data = msgspec.json.encode(replace(answer, reports=bare, bare=True))
    if len(data) > ANSWER_MAX_BYTES:
        answer = replace(answer, reports=tuple(replace(report, records=()) for report in answer.reports), short=True)
        data = msgspec.json.encode(answer)
    if len(data) > ANSWER_MAX_BYTES:
        return msgspec.json.encode(JobAnswer(trouble="the answer is too long: ask for fewer jobs"))
    return data


def asked(question: JobQuestion, host: str, port: int, trusted: Mapping[str, int]) -> JobAnswer:
    """Ask the service, and return its answer. trusted: names and numbers here of the users who may run it. Raises HostError.

    The service takes only some connections at once from one host. It closes the others without an answer. Then this asks again.
    """
    until = time.monotonic() + RETRY_SECONDS
    while not (said := _said(question, host, port)):
        if time.monotonic() > until:
            raise HostError(
                f"{host}:{port}: the service gave no answer", hint="see `journalctl -u 'fairlead-job@*'` on the controller"
            )
        time.sleep(random.uniform(0.1, 0.5))
    answer = munge.opened(said)
    if answer.uid not in trusted.values():
        known = " and ".join(f"{name} ({uid})" for name, uid in trusted.items()) + (" are" if len(trusted) > 1 else " is")
        raise HostError(
            f"{host}:{port}: the answer is of the user {answer.uid}, and only {known} trusted here",
            hint="compare `id -u fairlead`: this account must have the same number here as on the controller",
        )
    try:
        return msgspec.json.decode(answer.data, type=JobAnswer)
    except (msgspec.MsgspecError, RecursionError):
        raise HostError(f"{host}:{port}: its answer makes no sense", hint="is its fairlead of another version?") from None


def _said(question: JobQuestion, host: str, port: int) -> bytes:
    """Ask the service once, and return the credential that it sends, or nothing if it closes the connection. Raises HostError."""
    credential = munge.made(msgspec.json.encode(question))  # good for one try: munged refuses one that it has seen
    try:
        with socket.create_connection((host, port), timeout=SECONDS) as link, link.makefile("rb") as source:
            link.sendall(credential)
            return source.read(munge.CREDENTIAL_MAX_BYTES)
    except (ConnectionResetError, BrokenPipeError):
        return b""
    except OSError as e:
        why = e.strerror or "no answer in time"
        raise HostError(
            f"{host}:{port}: {why}", hint="does fairlead-job.socket run on the controller? --controller HOST"
        ) from None
