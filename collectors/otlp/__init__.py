"""OTLP receiver: spans over gRPC and HTTP become request parts, and are answered after the commit."""
