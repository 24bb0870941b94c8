"""How the Python tests wait for a condition."""
import time

# No test needs a minute: this is not a limit on speed, it ends a test that hangs.
PATIENCE_S = 60


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f'not within a minute: {what}'
        time.sleep(0.01)
