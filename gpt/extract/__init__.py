"""List the GPU code in the files that a command line names: regions, elements, kernels and PTX."""
