"""Operations of the IPU, by the modules in which its front end for TensorFlow had them."""
