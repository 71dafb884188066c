"""What users and tools call: compile, explain, the stages one by one, the ``turret`` command."""
