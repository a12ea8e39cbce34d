"""Make the tables of gpt/sass by experiment, with ptxas and nvdisasm."""
