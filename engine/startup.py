"""How a command starts, and how a failed start looks: logs, one line on stderr, exit code 2."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from engine.envs import read_envs, unknown_variables
from engine.errors import ConfigError, StartupError

log = logging.getLogger(__name__)


def guarded(run: Callable[[], int]) -> int:
    """Runs ``run``; a ``StartupError`` becomes one line on stderr and exit code 2."""
    try:
        return run()
    except StartupError as error:
        print(f"engine: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def set_up_logging() -> None:
    """Logs to stderr at ``ENGINE_LOG_LEVEL``, and names ``ENGINE_*`` variables nobody reads."""
    level = read_envs().log_level
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"ENGINE_LOG_LEVEL is {level!r}; use DEBUG, INFO, WARNING or ERROR.")
    logging.basicConfig(level=level, format="%(levelname)s %(asctime)s %(name)s: %(message)s")
    for name in unknown_variables():
        log.warning("%s is set, but nothing reads it; is it misspelt?", name)
