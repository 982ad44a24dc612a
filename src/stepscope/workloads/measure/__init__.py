"""How the workload programs time and describe themselves."""
