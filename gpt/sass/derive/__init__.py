"""Make the tables in gpt/sass by experiment, with ptxas and nvdisasm."""
