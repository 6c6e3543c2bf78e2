"""Pipeline stages of a Keras model: marks, assignment, and the run stage by stage."""
