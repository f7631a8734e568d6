"""The database: migrations up and down, and the deployments that should run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy

from ndif_models import db, fleet, jobs, migrations, tables


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / '100% new.db'}"


@pytest.fixture
def migrated(url: str) -> str:
    migrations.upgrade(url)
    return url


def test_the_migrations_make_the_tables_that_the_code_knows(migrated: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with db.engine(migrated).connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, tables.DeploymentRow.metadata) == []
        assert context.get_current_revision() == migrations.head()


def test_every_migration_can_be_taken_back(migrated: str) -> None:
    migrations.downgrade(migrated, "base")
    assert sqlalchemy.inspect(db.engine(migrated)).get_table_names() == ["alembic_version"]


def test_an_up_to_date_database_costs_no_import_of_alembic(migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "upgrade", lambda url: pytest.fail("it was upgraded again"))
    migrations.upgrade_own(migrated)


def test_an_own_database_is_made_when_it_is_missing(url: str) -> None:
    migrations.upgrade_own(url)
    assert fleet.deployments(url) == []


def test_a_sqlite_database_is_read_while_it_is_written(migrated: str) -> None:
    with db.engine(migrated).connect() as connection:
        assert connection.execute(sqlalchemy.text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(sqlalchemy.text("PRAGMA busy_timeout")).scalar() == 10_000


def test_a_block_that_raises_changes_nothing(migrated: str) -> None:
    with pytest.raises(ZeroDivisionError), db.session_scope(migrated) as session:
        session.execute(sqlalchemy.text("DROP TABLE deployments"))
        raise ZeroDivisionError
    assert fleet.deployments(migrated) == []


def test_writers_wait_for_each_other_and_readers_for_nobody(migrated: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        writes = [
            threads.submit(fleet.put_deployment, migrated, queue="org/a", model_key="key", replicas=number)
            for number in range(40)
        ]
        with db.session_scope(migrated):
            fleet.deployments(migrated)
        assert sorted(write.result().replicas for write in writes) == list(range(40))


def test_a_deployment_is_put_changed_and_removed(migrated: str) -> None:
    first = fleet.put_deployment(migrated, queue="org/a", model_key="key a", replicas=1)
    fleet.put_deployment(migrated, queue="org/b", model_key="key b", replicas=1)
    changed = fleet.put_deployment(migrated, queue="org/a", model_key="key a", replicas=3, dtype="float16")
    assert (changed.replicas, changed.dtype, changed.created_at) == (3, "float16", first.created_at)
    assert [one.queue for one in fleet.deployments(migrated)] == ["org/a", "org/b"]
    assert fleet.remove_deployment(migrated, "org/a") is True
    assert fleet.remove_deployment(migrated, "org/a") is False
    assert [one.queue for one in fleet.deployments(migrated)] == ["org/b"]


BEGUN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
OVER = jobs.Finished(
    id="j",
    queue="org/model",
    owner="me",
    status="COMPLETED",
    ended="values",
    attempts=1,
    replica="r-1",
    submitted_at=BEGUN,
    started_at=BEGUN + timedelta(seconds=1),
    finished_at=BEGUN + timedelta(seconds=2),
    run_s=1.5,
    cpu_s=2.25,
    peak_bytes=2**40,
    policy="default",
)


def test_a_finished_job_is_kept_as_it_was_and_once(migrated: str) -> None:
    jobs.record(migrated, [OVER, replace(OVER, id="k", started_at=None), OVER])
    jobs.record(migrated, [OVER])
    jobs.record(migrated, [])
    assert jobs.recent(migrated) == [OVER, replace(OVER, id="k", started_at=None)]


def test_the_latest_finished_jobs_come_first_of_whom_is_asked_for(migrated: str) -> None:
    later = replace(OVER, id="later", finished_at=BEGUN + timedelta(hours=1))
    others = replace(OVER, id="other", owner="somebody", queue="other")
    jobs.record(migrated, [OVER, later, others])
    assert [one.id for one in jobs.recent(migrated, limit=2)] == ["later", "j"]
    assert [one.id for one in jobs.recent(migrated, owner="somebody")] == ["other"]
    assert [one.id for one in jobs.recent(migrated, queue="org/model")] == ["later", "j"]
