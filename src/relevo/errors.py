"""The error tree. HTTP statuses and exit codes are decided from it, in one place each.

RelevoError
├── CallerError            the caller's fault; trying again the same way cannot help
│   ├── InvalidRequest     a request that breaks a rule of the API
│   ├── UnsupportedModel   a model or file that this build cannot run
│   └── LayoutMismatch     two workers whose KV pools do not fit together
├── StateError             the system's state; trying again later may help
│   ├── Overloaded         no room now
│   ├── WorkerLost         a worker died or fell silent
│   ├── HandoffFailed      a KV hand-off could not be completed
│   └── TransferError      the transfer core failed: provider, operation, code
└── ConfigError            a setting is wrong; names its key
"""


class RelevoError(Exception):
    """Base of all errors that Relevo raises on purpose."""


class CallerError(RelevoError):
    """The caller's fault."""


class InvalidRequest(CallerError):
    """A request that breaks a rule of the API. `param` names the offending field."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class UnsupportedModel(CallerError):
    """A model or model file that this build cannot run."""


class LayoutMismatch(CallerError):
    """Two KV pools that do not fit together; says what each side has."""


class StateError(RelevoError):
    """The system cannot do it now."""


class Overloaded(StateError):
    """No room now. `retry_after_s` is set where waiting that long may help."""

    def __init__(self, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WorkerLost(StateError):
    """A worker died or fell silent."""


class HandoffFailed(StateError):
    """A KV hand-off could not be completed."""


class TransferError(StateError):
    """The transfer core failed. `code` is the provider's own (often an errno)."""

    def __init__(self, provider: str, operation: str, code: int, detail: str) -> None:
        super().__init__(f"{provider} {operation}: {detail} ({code})")
        self.provider = provider
        self.operation = operation
        self.code = code
        self.detail = detail


class ConfigError(RelevoError):
    """A setting is wrong. `key` is the setting as the user writes it."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key
