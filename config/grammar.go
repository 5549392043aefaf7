package config

// grammar is the whole language: the top level of a configuration.
func grammar() *schema {
	return &schema{
		name: "configuration",
		blocks: []*schema{
			variableSchema(),
			localsSchema(),
			imageSchema(),
			testbedSchema(),
			firewallSchema(),
			experimentSchema(),
			claimSchema(),
			analysisSchema(),
			reportSchema(),
		},
	}
}
