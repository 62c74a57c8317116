"""The same loads by Apache's Java client (`JavaLoad.java`) and by rmqkit's (`python_load.py`)."""
