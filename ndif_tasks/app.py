"""The Celery app. JSON only, late acknowledgement, prefetch 1, no result backend, one queue per model.

Its configuration is read from the settings when first needed, so that importing does nothing. Code of replicas is
named by string and loaded only inside workers.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from ndif_models.settings import Settings, settings

from . import routing


class FarmApp(Celery):
    """Celery whose configuration comes from the farm's settings."""

    def prepare_config(self, c: Any) -> Any:
        """Celery's hook for the configuration, called when it is first needed."""
        return super().prepare_config({**(c or {}), **configuration(settings())})

    @property
    def Worker(self) -> Any:
        """The worker class: one that knows models' queues."""
        return self.subclass_with_self("ndif_tasks.replica.worker:FarmWorker")


def configuration(settings: Settings) -> dict[str, Any]:
    """Celery's settings for a farm."""
    longest_job_s = settings.default_execution_timeout_seconds + settings.load_timeout_s
    return {
        "broker_url": settings.broker_url or "redis://127.0.0.1:6379/0",
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # A message unacknowledged for longer is delivered again; no job may run that long.
        "broker_transport_options": {
            "visibility_timeout": int(longest_job_s) + 3600,
            "socket_keepalive": True,
            "health_check_interval": 10,
        },
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_acks_late": True,
        "task_reject_on_worker_lost": False,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_default_queue": routing.CONTROL,
        "task_create_missing_queues": True,
        "worker_prefetch_multiplier": 1,
        "worker_pool": "threads",
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_enable_remote_control": True,
        "beat_schedule": schedule(),
    }


def schedule() -> dict[str, dict[str, Any]]:
    """What beat sends, and how often (seconds). A tick nobody took expires before the next."""
    every = {routing.RECONCILE: 2.0, routing.KEEP_PROMISES: 5.0, routing.WRITE_DOWN: 2.0, routing.SWEEP_OBJECTS: 600.0}
    return {
        name: {"task": name, "schedule": seconds, "options": {"queue": routing.CONTROL, "expires": seconds}}
        for name, seconds in every.items()
    }


app = FarmApp(
    "ndif",
    include=["ndif_tasks.replica.run_job", "ndif_tasks.control.tasks", "ndif_tasks.control.agent"],
    set_as_current=True,
)
app.steps["worker"].add("ndif_tasks.replica.worker:ReplicaStep")
app.steps["worker"].add("ndif_tasks.control.agent:AgentStep")
