"""Models of Keras in a ring: their copies, and the reduction of gradients."""
