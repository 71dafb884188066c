"""Makes ``joint_graphs`` importable by the tests of the plugins."""
