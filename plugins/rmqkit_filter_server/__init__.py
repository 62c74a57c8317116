"""Filter servers: processes beside a broker that consumers pull from, with filters in Python (behaviour
sheet, C13)."""
