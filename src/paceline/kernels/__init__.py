"""The arithmetic: native kernels, their PyTorch reference, and the threads that both run on."""
