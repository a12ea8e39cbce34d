"""Slimmed libraries with a few kernels, and a program that loads them."""

from __future__ import annotations

from tests import cuda, loaded

FILL, MATMUL = "_Z14setScalarItemsPffi", "_Z12matrixMulGPUPKfS0_Pfi"


def slim(library, folder, *options, mode="compact", keep=MATMUL, used=None, kernels="drop", arch="sm_90"):
    """Return the library with one kernel, or with the kernels that a trace used."""
    used = used or folder.parent / "nothing.txt"
    if used.suffix == ".txt":
        used.touch()
    stream = b""
    for command in (
        ["gpt-extract", library],
        ["gpt-locate", "--used", used, *(["--keep", keep] if keep else []), "--arch", arch, *options],
        ["gpt-patch", "-o", folder, "--mode", mode, "--kernels", kernels],
    ):
        done = loaded.run(command, stream, check=False)
        assert done.returncode == 0, done.stderr
        stream = done.stdout
    return folder / library.name


def two_kernels(folder, name="libtwo.so", together=False):
    """Return a library with two kernels, either in two elements of one region, or both in one element."""
    code = [f'extern "C" __global__ void {kernel}(int *p) {{ *p = 1; }}' for kernel in ("one", "two")]
    sources = ["".join(code)] if together else code
    elements = [("sm_90", "cubin", cuda.nvrtc_compile(source, "sm_90")) for source in sources]
    (folder / "two.c").write_text(
        "extern const char fatbin_wrappers[]; const void *wrapper(void) { return fatbin_wrappers; }"
    )
    return cuda.shared_library(folder / name, [cuda.fatbin(elements, "none")], sources=[folder / "two.c"])


CLIENT = r"""
int main(int count, char **arguments) {
    begin();
    void *library = dlopen("%s", RTLD_NOW), *module, *kernel;
    const void *(*wrapper)(void) = dlsym(library, "wrapper");
    int (*load)() = dlsym(driver, "cuLibraryLoadData"), (*get)() = dlsym(driver, "cuLibraryGetKernel");
    OK(load(&module, wrapper(), 0, 0, 0, 0, 0, 0));
    for (int round = 0; round < 3; round++)
        for (int i = 1; i < count; i++)
            printf("%%d ", get(&kernel, module, arguments[i]));
}
"""
