"""What FLARE 2.9 would end a job for is still what `isolate_sites` changes."""

from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.fuel.f3.cellnet import cell
from nvflare.private.fed.server.server_runner import ServerRunner

from fedproin.flare.isolation import isolate_sites

SERVER_JOB = SimpleNamespace(fqcn="server.job")


@pytest.fixture
def runner(monkeypatch):
    """A server's runner of which only the codes matter; the change of FLARE ends with the test."""
    monkeypatch.setattr(cell, "_is_server_job_cell", cell._is_server_job_cell)
    return ServerRunner.__new__(ServerRunner)


def test_no_return_code_and_no_message_of_one_site_ends_the_job(runner):
    assert ReturnCode.UNSAFE_JOB in runner.ABORT_RETURN_CODES
    assert cell._is_server_job_cell(SERVER_JOB)
    isolate_sites(runner)
    assert ReturnCode.UNSAFE_JOB not in runner.ABORT_RETURN_CODES
    assert not cell._is_server_job_cell(SERVER_JOB)
    assert ReturnCode.UNSAFE_JOB in ServerRunner.ABORT_RETURN_CODES  # of other jobs
