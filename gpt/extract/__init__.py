"""What is in a file: regions, elements, kernels, PTX. Which files a command line names."""
