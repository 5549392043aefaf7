# All *.hcl files of a directory are one configuration, in any order:
#
#   rampart plan --config examples/several-files --var 'sizes=[10, 10000]' --var-file night.vars

variable "sizes" {
  description = "Numbers of rules."
  default     = [10, 100, 1000]
}

variable "repetitions" {
  default = 6
}
