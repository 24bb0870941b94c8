"""Programs on a Vulkan device that fails as a test wants (tests/lib/vulkan_layer.c)."""
import os


class Layer:
    """What the layer reads and writes in a folder. The device computes nothing if is_empty."""

    def __init__(self, program, folder, is_empty=True):
        self.fault, self.log = os.path.join(folder, 'fault'), os.path.join(folder, 'log')
        self.environment = {**os.environ, 'VK_LAYER_PATH': os.path.join(os.path.dirname(program), 'tests'),
                            'VK_INSTANCE_LAYERS': 'VK_LAYER_MOEFLUX_test', 'MOEFLUX_VK_FAULT': self.fault,
                            'MOEFLUX_VK_LOG': self.log}
        if is_empty:
            self.environment['MOEFLUX_VK_EMPTY'] = '1'

    def set(self, fault, then=None):
        """Sets the fault, and the one that replaces it when a loss has happened."""
        if then:
            self.write(self.fault + '.next', then)
        self.write(self.fault, fault)

    @staticmethod
    def write(path, text):
        with open(path + '.new', 'w') as f:
            f.write(text)
        os.rename(path + '.new', path)

    def clear(self):
        for path in (self.fault, self.fault + '.next', self.log):
            if os.path.exists(path):
                os.remove(path)

    def counts(self):
        """Returns the numbers of submissions, allocations and objects that were not freed, when the last
        device was closed."""
        with open(self.log) as f:
            return [int(n) for n in f.read().splitlines()[-1].split()]


def run_claims(claims):
    """Runs each claim, prints cmocka's lines, and returns whether one failed."""
    n_failed = 0
    for claim in claims:
        try:
            claim()
            print(f'[       OK ] {claim.__name__}', flush=True)
        except Exception as fault:
            n_failed += 1
            print(f'    {claim.__name__}: {type(fault).__name__}: {str(fault)[:1500]}')
            print(f'[  FAILED  ] {claim.__name__}', flush=True)
    return n_failed > 0
