"""Stands in for SGLang's compiled kernels, which have no build for this purpose: with torch's own attention none of
them is called, only their names are imported."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name}")

    return absent
