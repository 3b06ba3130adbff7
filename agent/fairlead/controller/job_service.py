"""Answers which ended jobs used what, one request for each connection: each user gets their own jobs, and operators get all.

The request is a munge credential with a ``JobQuestion`` as JSON, and the answer is one with a ``JobAnswer``, which only the
asking user can open. A job of somebody else and a job that does not exist get the same answer. systemd starts the service for
each connection (``fairlead-job.socket``, Accept=yes), so that it holds no state.
"""

from __future__ import annotations

import pwd
import socket
import time
from collections.abc import Callable, Sequence
from typing import Annotated, BinaryIO, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fairlead.controller import munge
from fairlead.controller.job_store import JobStore, StoredRun
from fairlead.errors import FairleadError, HostError
from fairlead.jobs.usage_merge import JobReport, merged
from fairlead.jobs.usage_record import without_histograms

PORT = 6830
SECONDS = 10.0
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
    """Holds the reports. bare: the histograms were left out, because the answer would be too long. short: so were all values of
    each node. trouble: why there is no answer, or ""."""

    reports: Annotated[tuple[JobReport, ...], Meta(max_length=REPORTS_MAX)] = ()
    bare: bool = False
    short: bool = False
    trouble: Annotated[str, Meta(max_length=300)] = ""


def serve(source: BinaryIO, sink: BinaryIO, store: str, is_operator: Callable[[int, str], bool]) -> None:
    """Answer one request. Raises HostError for bytes that are no request."""
    asker = munge.opened(source.readline(QUESTION_MAX_BYTES))
    try:
        question = msgspec.json.decode(asker.data, type=JobQuestion)
        with JobStore(store, write=False) as opened:
            answer = answer_to(question, asker.uid, opened, lambda: is_operator(asker.uid, asker.user), time.time())
    except (msgspec.MsgspecError, RecursionError):
        answer = JobAnswer(trouble="the question makes no sense: is this fairlead older than that of the controller?")
    except FairleadError as e:
        answer = JobAnswer(trouble=str(e)[:300])
    sink.write(munge.made(_encoded(answer), for_uid=asker.uid))
    sink.flush()


def answer_to(question: JobQuestion, uid: int, store: JobStore, is_operator: Callable[[], bool], now: float) -> JobAnswer:
    """Return the reports that a user may see. Slurm is asked whether the user is an operator, unless all jobs are the user's."""
    runs = _runs(question, uid, store)
    if not runs or any(each.run.uid != uid for each in runs):
        operator = is_operator()
        runs = [each for each in runs if operator or each.run.uid == uid]
    return JobAnswer(reports=tuple(merged(each.run, store.records(each.run), now)[0] for each in runs[: question.most]))


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
        reports = (replace(report, records=tuple(map(without_histograms, report.records))) for report in answer.reports)
        data = msgspec.json.encode(JobAnswer(reports=tuple(reports), bare=True))
    if len(data) > ANSWER_MAX_BYTES:
        answer = JobAnswer(reports=tuple(replace(report, records=()) for report in answer.reports), short=True)
        data = msgspec.json.encode(answer)
    if len(data) > ANSWER_MAX_BYTES:
        return msgspec.json.encode(JobAnswer(trouble="the answer is too long: ask for fewer jobs"))
    return data


def asked(question: JobQuestion, host: str, port: int, trusted: Sequence[int]) -> JobAnswer:
    """Ask the service, and return its answer. trusted: the users who may run the service. Raises HostError."""
    credential = munge.made(msgspec.json.encode(question))
    try:
        with socket.create_connection((host, port), timeout=SECONDS) as link, link.makefile("rb") as source:
            link.sendall(credential)
            said = source.read(munge.CREDENTIAL_MAX_BYTES)
    except OSError as e:
        why = e.strerror or "no answer in time"
        raise HostError(
            f"{host}:{port}: {why}", hint="does fairlead-job.socket run on the controller? --controller HOST"
        ) from None
    if not said:
        raise HostError(
            f"{host}:{port}: the service gave no answer", hint="see `journalctl -u 'fairlead-job@*'` on the controller"
        )
    answer = munge.opened(said)
    if answer.uid not in trusted:
        raise HostError(f"{host}:{port}: the answer is not of fairlead's service, but of the user {answer.uid}")
    try:
        return msgspec.json.decode(answer.data, type=JobAnswer)
    except (msgspec.MsgspecError, RecursionError):
        raise HostError(f"{host}:{port}: its answer makes no sense", hint="is its fairlead of another version?") from None
