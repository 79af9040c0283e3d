"""The error tree of kvscope; each class says when it is raised.

KvscopeError
├── UsageError              the input or setting is wrong; trying again will not help
│   └── ConfigError         a configuration file, flag or environment value is wrong
├── UnreachableError        a server or the store cannot be reached
│   └── SchemaError         the store's schema is not the one this version speaks
└── IngestError             data could not be taken in
    ├── PermanentIngestError   the same data will fail again
    └── RetryableIngestError   the same data may be sent again later
"""


class KvscopeError(Exception):
    """Base of all errors that kvscope raises on purpose; the text is one clear line."""

    exit_code = 1


class UsageError(KvscopeError):
    """Raised when input, a flag or a body is wrong and repeating it will not help."""

    exit_code = 2


class ConfigError(UsageError):
    """Raised when a configuration file, flag or environment value is wrong."""


class UnreachableError(KvscopeError):
    """Raised when a server or the store cannot be reached."""

    exit_code = 3


class SchemaError(UnreachableError):
    """Raised when the store's schema is older or newer than the one this version speaks."""


class IngestError(KvscopeError):
    """Base of the two ways in which data can fail to be taken in."""


class PermanentIngestError(IngestError):
    """Raised when the same data will fail again: it is counted and answered, not retried."""


class RetryableIngestError(IngestError):
    """Raised when the same data may be sent again later, after ``retry_after_seconds``."""

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
