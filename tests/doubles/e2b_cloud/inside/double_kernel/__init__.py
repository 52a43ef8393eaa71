"""What the kernel inside a sandbox is made of."""
