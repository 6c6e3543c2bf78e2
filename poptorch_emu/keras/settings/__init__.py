"""Options of IPUs and pipelines, as Keras programs set them and as files keep them."""
