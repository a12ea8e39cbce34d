"""Find and list GPU code: which files a command line names, and their regions, elements, kernels and PTX."""
