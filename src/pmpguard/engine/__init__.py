"""One job on several processes or on a Ray cluster: a plan of parts, and files as the exchange."""
