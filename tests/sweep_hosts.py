"""Sweeps from the fork server that tests share."""

from run_fixtures import SHARED_HOST, shared_host_for

from flstream.job import Job


class SharedHosts:
    """Stands in for the fork servers of a sweep: the shared one, which stays."""

    def of(self, job: Job) -> object:
        host = shared_host_for(job)
        host.begin()
        return host

    def close(self) -> None:
        SHARED_HOST.end_processes()
