"""kvrope inside engines that people already use: ``kvrope.integrations.transformers``."""
