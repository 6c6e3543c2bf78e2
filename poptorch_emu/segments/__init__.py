"""The graph cut into straight-line code: segments, and the links that carry values between them."""
