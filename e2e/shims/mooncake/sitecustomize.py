"""vLLM's Mooncake connector marks its progress with CUDA events. On a CPU everything has happened when a call
returns, so here an event is one that has always happened."""
import importlib.machinery
import sys


class Event:
    def __init__(self, *_args, **_kwargs):
        pass

    def record(self, *_args, **_kwargs):
        pass

    def wait(self, *_args, **_kwargs):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True


class AfterImport:
    """Finds `torch.cuda` as ever and puts the event in when it is loaded."""

    def find_spec(self, name, path, _target=None):
        if name != "torch.cuda":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            module.Event = Event

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, AfterImport())
