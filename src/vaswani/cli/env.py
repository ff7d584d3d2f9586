"""`vaswani env`."""

from vaswani.cli.app import app
from vaswani.cli.screen import print_line


@app.command()
def env() -> None:
    """Print versions, devices, and which fast paths are active.

    Include the output in a bug report.
    """
    import platform

    import torch
    import transformers

    import vaswani
    from vaswani.kernels import onednn
    from vaswani.kernels.registry import active_kernels

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    rows = {
        "vaswani": vaswani.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "GPUs": ", ".join(gpus) or "none",
    }
    for name, value in rows.items():
        print_line(f"{name:16}{value}")
    print_line("\nkernels")
    for name, reason in active_kernels().items():
        print_line(f"  {name:18}{'active' if reason is None else f'not active: {reason}'}")
    if onednn.IS_BUILT:  # the one setting of the process that our models change
        limits = " and ".join(onednn.CACHE_LIMITS)
        print_line(f"\noneDNN caches the last {onednn.CACHED_SHAPES} shapes, unless {limits} say otherwise.")
