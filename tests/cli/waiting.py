"""How the Python tests wait for a condition."""
import time


def wait_until(condition, what):
    """Waits until the condition is true, at most a minute: no test needs that, a test that hangs ends."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f'not within a minute: {what}'
        time.sleep(0.01)
