"""The host: kernel, processes, sockets, programs and the GPU driver."""
